#include "base/kernel_calls.h"

#include <sys/syscall.h>
#include <unistd.h>

namespace rdmacoll {

int create_memfd(const char* name, unsigned flags) {
  return static_cast<int>(::syscall(SYS_memfd_create, name, flags));
}

ssize_t get_random(void* into, std::size_t bytes) {
  return ::syscall(SYS_getrandom, into, bytes, 0);
}

}  // namespace rdmacoll
