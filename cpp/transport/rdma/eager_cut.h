// Up to which size a transfer goes eager, where nobody has set it: found by measurement.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "base/clock.h"

namespace rdmacoll::rdma {

// What is found lies between these; the lower one is the documented default of TF_RDMA_ACC_SIZE.
inline constexpr uint32_t kEagerBytesMin = 8 << 10;
inline constexpr uint32_t kEagerBytesMax = 64 << 10;

// Eager costs a copy at each end, rendezvous the way of a grant: the largest power of two for which
// the copies do not take longer, at most `most`. `way`: how long the shortest request takes until
// it is acknowledged; `copy_speed`: bytes per nanosecond.
uint32_t eager_cut(Nanoseconds way, double copy_speed, uint32_t most);

// Of this processor, in bytes per nanosecond; takes some 0.1 ms.
double measure_copy_speed(const Clock& clock);

// Takes the time of requests, one after the other; the shortest counts, since what disturbs only
// makes them longer.
class WayTimer {
 public:
  void start(int requests) { left_ = requests; }
  // The next request may go.
  bool wants_request() const { return left_ > 0 && began_at_ == kNever; }
  void begin(Nanoseconds now) { began_at_ = now; }
  void end(Nanoseconds now) {
    best_ = std::min(best_, now - began_at_);
    began_at_ = kNever;
    --left_;
  }
  bool is_done() const { return left_ == 0; }
  Nanoseconds best() const { return best_; }

 private:
  int left_ = 0;
  Nanoseconds began_at_ = kNever;
  Nanoseconds best_ = kNever;
};

}  // namespace rdmacoll::rdma
