// Calls of the kernel that old C libraries have no functions for: the release wheel is linked
// against glibc 2.17. They return -1 and set errno, as the functions would. Kernels before 3.17 do
// not know them.
#pragma once

#include <sys/types.h>

#include <cstddef>

namespace rdmacoll {

constexpr unsigned kMemfdCloexec = 1;
constexpr unsigned kMemfdAllowSealing = 2;

int create_memfd(const char* name, unsigned flags);

// Bytes that nobody can foretell; an old kernel has them in a file.
ssize_t get_random(void* into, std::size_t bytes);

}  // namespace rdmacoll
