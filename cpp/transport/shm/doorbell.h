// Wakes a sleeping rank through one eventfd and one flag, which all its peers share.
//
// The lost wake-up is the danger. A producer writes a record and reads "awake", so it does not
// ring. The sleeper looked at the ring before the record came, and sleeps for ever. The following
// order prevents it:
//
//   sleeper   S1: asleep = 1         S2: read the next stamp of every ring
//   producer  P1: stamp = new        P2: read asleep
//
// S1 and S2 are seq_cst, and a seq_cst fence stands between P1 and P2. So there is one total order
// in which S1 comes before S2 and P1 before P2. If P2 read 0, P2 came before S1, so P1 came before
// S2. S2 then saw the record, and arm() returns false. Otherwise P2 read 1 and the producer rings.
//
// The fence waits until the peer has given up the record's cache line, which delays the producer.
// So the producer first reads the flag without a fence, in case the peer sleeps already. It reads
// the flag again behind a fence with its next poll().
//
// If several producers read 1, one of them wins the exchange and rings. The others need not ring.
// If the winner dies between its exchange and its write, its socket closes, which wakes the sleeper
// as well. A ring that arrives after the sleeper has woken costs one needless wake-up.
#pragma once

#include <atomic>
#include <cstdint>

#include "base/fd.h"
#include "base/status.h"
#include "memory/shared_memory.h"

namespace rdmacoll::shm {

// A page of its own, which all local peers can write.
struct DoorbellPage {
  alignas(128) std::atomic<uint32_t> asleep;
  // One more than the core on which the rank has waited last, or 0. Only the rank writes it.
  alignas(128) std::atomic<uint32_t> core;
};
inline constexpr std::size_t kDoorbellBytes = 4096;
static_assert(sizeof(DoorbellPage) <= kDoorbellBytes);

// This rank's own doorbell.
class Doorbell {
 public:
  Status open();
  int event() const { return event_.get(); }
  int page() const { return page_fd_.get(); }

  void arm();
  // Returns true if the doorbell was armed. The sleeper then is awake, or has given up sleeping.
  bool disarm();
  void drain();  // empties the eventfd
  void show_core(int core);

 private:
  DoorbellPage* shared() const { return reinterpret_cast<DoorbellPage*>(mapping_.data()); }

  Fd event_;
  Fd page_fd_;
  Mapping mapping_;
  bool armed_ = false;
};

// A peer's doorbell. The calls that ring return whether they made a system call.
class Bell {
 public:
  Status open(Fd event, Fd page);
  bool ring_if_asleep();  // reads the flag without a fence
  bool ring();            // rings if the peer sleeps
  // The core on which the peer has waited last. -1: it has shown none.
  int core() const;

 private:
  DoorbellPage* shared() const { return reinterpret_cast<DoorbellPage*>(mapping_.data()); }

  Fd event_;
  Mapping mapping_;
};

}  // namespace rdmacoll::shm
