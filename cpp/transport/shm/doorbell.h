// How a sleeping rank is woken: one eventfd and one flag per rank, shared with all its peers.
//
// The lost wake-up. A producer writes a record and would ring, but reads "awake"; the sleeper
// looked at the ring before the record came, and sleeps for ever. It cannot happen, because of this
// order:
//
//   sleeper   S1: asleep = 1         S2: read every ring's head
//   producer  P1: head = new         P2: read asleep
//
// All four are seq_cst, so they stand in one total order in which S1 comes before S2 and P1 before
// P2. If P2 read 0, P2 came before S1, hence P1 before S2, and S2 saw the record: arm() says false.
// Otherwise P2 read 1 and the producer rings. Of several producers that read 1 one gets it by
// exchange and rings; the others may leave, as the ring is certain: if the one dies between its
// exchange and its write, its socket closes, which wakes the sleeper as well. A ring that arrives
// late, when the sleeper has got up already, costs one needless wake-up.
#pragma once

#include <atomic>
#include <cstdint>

#include "base/fd.h"
#include "base/status.h"
#include "memory/shared_memory.h"

namespace rdmacoll::shm {

// In a page of its own that all local peers can write.
struct DoorbellPage {
  alignas(128) std::atomic<uint32_t> asleep;
};
inline constexpr std::size_t kDoorbellBytes = 4096;
static_assert(sizeof(DoorbellPage) <= kDoorbellBytes);

// My own.
class Doorbell {
 public:
  Status open();
  int event() const { return event_.get(); }
  int page() const { return page_fd_.get(); }

  void arm();
  // True: it was armed, so whoever sleeps has been woken or has given up sleeping.
  bool disarm();
  void drain();  // takes the rings out of the eventfd

 private:
  DoorbellPage* shared() const { return reinterpret_cast<DoorbellPage*>(mapping_.data()); }

  Fd event_;
  Fd page_fd_;
  Mapping mapping_;
  bool armed_ = false;
};

// A peer's.
class Bell {
 public:
  Status open(Fd event, Fd page);
  bool ring();  // if it sleeps; true: a system call was made

 private:
  DoorbellPage* shared() const { return reinterpret_cast<DoorbellPage*>(mapping_.data()); }

  Fd event_;
  Mapping mapping_;
};

}  // namespace rdmacoll::shm
