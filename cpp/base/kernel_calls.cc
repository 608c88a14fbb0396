#include "base/kernel_calls.h"

#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>

#include "base/fd.h"

namespace rdmacoll {

int create_memfd(const char* name, unsigned flags) {
  return static_cast<int>(::syscall(SYS_memfd_create, name, flags));
}

ssize_t get_random(void* into, std::size_t bytes) {
  const ssize_t count = ::syscall(SYS_getrandom, into, bytes, 0);
  if (count >= 0 || errno != ENOSYS) return count;
  const Fd file(::open("/dev/urandom", O_RDONLY | O_CLOEXEC));
  return file ? ::read(file.get(), into, bytes) : -1;
}

int get_scheduler_attributes(SchedulerAttributes& attributes) {
  return static_cast<int>(::syscall(SYS_sched_getattr, 0, &attributes, sizeof attributes, 0));
}

int set_scheduler_attributes(const SchedulerAttributes& attributes) {
  return static_cast<int>(::syscall(SYS_sched_setattr, 0, &attributes, 0));
}

}  // namespace rdmacoll
