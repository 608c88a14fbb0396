#include "base/futex.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <climits>

namespace rdmacoll {

void futex_wait(std::atomic<uint32_t>& word, uint32_t expected, Nanoseconds timeout) {
  timespec limit{timeout / kSecond, timeout % kSecond};
  syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, expected, timeout == kNever ? nullptr : &limit,
          nullptr, 0);
}

void futex_wake_all(std::atomic<uint32_t>& word) {
  syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace rdmacoll
