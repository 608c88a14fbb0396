// Finds the largest eager transfer by measurement, if no setting gives it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "base/clock.h"

namespace rdmacoll::rdma {

// The result lies between these. The lower one is the documented default of TF_RDMA_ACC_SIZE.
inline constexpr uint32_t kEagerBytesMin = 8 << 10;
inline constexpr uint32_t kEagerBytesMax = 64 << 10;

// Eager costs a copy at each end, and rendezvous costs the travel time of a grant. Returns the
// largest power of two, at most `most`, for which the copies do not take longer.
//
// Arguments: `way`, the time until the shortest request is acknowledged. `copy_speed`, in bytes per
// nanosecond.
uint32_t eager_cut(Nanoseconds way, double copy_speed, uint32_t most);

// Measures this processor, in bytes per nanosecond.
double measure_copy_speed(const Clock& clock);

// Times single requests. The shortest time counts, since disturbances only lengthen a request.
class LatencyTimer {
 public:
  void start(int requests) { left_ = requests; }
  // Returns true if the next request may go.
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
