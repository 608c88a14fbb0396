// How a sleeping rank is woken: one eventfd and one flag per rank, shared with all its peers.
//
// The lost wake-up. A producer writes a record and would ring, but reads "awake"; the sleeper
// looked at the ring before the record came, and sleeps for ever. It cannot happen, because of this
// order:
//
//   sleeper   S1: asleep = 1         S2: read the next stamp of every ring
//   producer  P1: stamp = new        P2: read asleep
//
// S1 and S2 are seq_cst, and a seq_cst fence stands between P1 and P2, so there is one total order
// in which S1 comes before S2 and P1 before P2. If P2 read 0, P2 came before S1, hence P1 before
// S2, and S2 saw the record: arm() says false. Otherwise P2 read 1 and the producer rings. The
// fence waits until the peer has given the record's line away, while this rank has better things to
// do: so the producer looks without one first, in case the peer sleeps already, and once more,
// behind the fence, with its next poll(). Of several producers that read 1 one gets it
// by exchange and rings; the others may leave, as the ring is certain: if the one dies between its
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

// A peer's. Both return whether a system call was made.
class Bell {
 public:
  Status open(Fd event, Fd page);
  bool ring_if_asleep();  // as far as is known without a fence
  bool ring();            // if it sleeps

 private:
  DoorbellPage* shared() const { return reinterpret_cast<DoorbellPage*>(mapping_.data()); }

  Fd event_;
  Mapping mapping_;
};

}  // namespace rdmacoll::shm
