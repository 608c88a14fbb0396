#include "base/event.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>

namespace rdmacoll {

Fd make_event() { return Fd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)); }

void ring(const Fd& event) {
  const uint64_t one = 1;
  while (::write(event.get(), &one, sizeof one) < 0 && errno == EINTR) {
  }
}

void silence(const Fd& event) {
  uint64_t rings = 0;
  while (::read(event.get(), &rings, sizeof rings) < 0 && errno == EINTR) {
  }
}

}  // namespace rdmacoll
