// System calls for which old C libraries have no functions. The release wheel is linked against
// glibc 2.17. Each returns -1 and sets errno, as the functions would. Kernels before 3.17 lack
// some of these calls.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>

namespace rdmacoll {

constexpr unsigned kMemfdCloexec = 1;
constexpr unsigned kMemfdAllowSealing = 2;

int create_memfd(const char* name, unsigned flags);

// Fills `into` with random bytes. Old kernels without the call provide them in /dev/urandom.
ssize_t get_random(void* into, std::size_t bytes);

// As sched_attr(2) has them. `runtime`: for usual threads the time slice in ns, 0 before
// Linux 6.12.
struct SchedulerAttributes {
  uint32_t size = 48;
  uint32_t policy = 0;
  uint64_t flags = 0;
  int32_t nice = 0;
  uint32_t priority = 0;
  uint64_t runtime = 0, deadline = 0, period = 0;
};
// For the calling thread.
int get_scheduler_attributes(SchedulerAttributes& attributes);
int set_scheduler_attributes(const SchedulerAttributes& attributes);

}  // namespace rdmacoll
