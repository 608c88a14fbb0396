#include "base/time_slice.h"

#include <sched.h>

#include <utility>

namespace rdmacoll {
namespace {

constexpr uint64_t kShortestSlice = 100'000;  // ns, the kernel's limit

}  // namespace

void ShortTimeSlice::begin() {
  if (std::exchange(is_tried_, true) || get_scheduler_attributes(own_) != 0) return;
  if (own_.policy != SCHED_OTHER) return;
  SchedulerAttributes short_slice = own_;
  short_slice.runtime = kShortestSlice;
  has_begun_ = set_scheduler_attributes(short_slice) == 0;
}

ShortTimeSlice::~ShortTimeSlice() {
  if (has_begun_) set_scheduler_attributes(own_);
}

}  // namespace rdmacoll
