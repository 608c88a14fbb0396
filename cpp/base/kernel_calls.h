// System calls for which old C libraries have no functions. The release wheel is linked against
// glibc 2.17. Each returns -1 and sets errno, as the functions would. Kernels before 3.17 lack
// these calls.
#pragma once

#include <sys/types.h>

#include <cstddef>

namespace rdmacoll {

constexpr unsigned kMemfdCloexec = 1;
constexpr unsigned kMemfdAllowSealing = 2;

int create_memfd(const char* name, unsigned flags);

// Fills `into` with random bytes. Old kernels without the call provide them in /dev/urandom.
ssize_t get_random(void* into, std::size_t bytes);

}  // namespace rdmacoll
