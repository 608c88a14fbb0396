#include "transport/shm/doorbell.h"

#include <sched.h>

#include <cerrno>

#include "base/event.h"
#include "base/system_error.h"

namespace rdmacoll::shm {

Status Doorbell::open() {
  event_ = make_event();
  if (!event_) return system_error("eventfd", errno);
  RC_RETURN_IF_ERROR(create_shared("rdmacoll doorbell", kDoorbellBytes, page_fd_));
  return map_shared(page_fd_.get(), kDoorbellBytes, mapping_);
}

void Doorbell::arm() {
  armed_ = true;
  shared()->asleep.store(1, std::memory_order_seq_cst);
}

bool Doorbell::disarm() {
  if (!armed_) return false;
  armed_ = false;
  shared()->asleep.store(0, std::memory_order_relaxed);
  return true;
}

void Doorbell::drain() { silence(event_); }

void Doorbell::show_core(int core) {
  const uint32_t shown = static_cast<uint32_t>(core + 1);
  // Peers keep a copy of the line while it stays the same.
  std::atomic<uint32_t>& word = shared()->core;
  if (word.load(std::memory_order_relaxed) != shown) {
    word.store(shown, std::memory_order_relaxed);
  }
}

Status Bell::open(Fd event, Fd page) {
  RC_RETURN_IF_ERROR(check_shared(page.get(), kDoorbellBytes));
  RC_RETURN_IF_ERROR(map_shared(page.get(), kDoorbellBytes, mapping_));
  event_ = std::move(event);
  return {};
}

bool Bell::ring_if_asleep() {
  return shared()->asleep.load(std::memory_order_relaxed) != 0 && ring();
}

bool Bell::ring() {
  if (shared()->asleep.load(std::memory_order_seq_cst) == 0) return false;
  if (shared()->asleep.exchange(0, std::memory_order_seq_cst) == 0) return false;
  rdmacoll::ring(event_);
  return true;
}

// A peer may write anything.
int Bell::core() const {
  const uint32_t shown = shared()->core.load(std::memory_order_relaxed);
  return shown <= CPU_SETSIZE ? static_cast<int>(shown) - 1 : -1;
}

}  // namespace rdmacoll::shm
