// Small parts of the simulator: compute that takes its time, and elements by dtype.
#pragma once

#include <cstdint>
#include <vector>

#include "base/dtype.h"
#include "compute/inline.h"
#include "transport/sim/sim_network.h"

namespace rdmacoll {

// Does its jobs some polls later than asked, in any order.
class SlowCompute final : public Compute {
 public:
  explicit SlowCompute(SimNetwork& network, bool slow) : network_(network), slow_(slow) {}

  Status submit(const ComputeJob& job) override {
    jobs_.push_back(job);
    return {};
  }
  Status perform_at_once(const ComputeJob& job, std::size_t bytes) override {
    return slow_ ? Status::busy() : inline_.perform_at_once(job, bytes);
  }
  bool poll(ComputeSink& sink) override {
    bool any = false;
    for (std::size_t i = 0; i < jobs_.size();) {
      if (slow_ && network_.chance(0.6)) {
        ++i;
        continue;
      }
      const ComputeJob job = jobs_[i];
      jobs_.erase(jobs_.begin() + static_cast<std::ptrdiff_t>(i));
      RC_ASSERT(inline_.submit(job).ok());
      inline_.poll(sink);
      any = true;
    }
    return any;
  }
  bool arm() override { return jobs_.empty(); }
  uint64_t bytes_copied() const override { return inline_.bytes_copied(); }

 private:
  SimNetwork& network_;
  bool slow_;
  InlineCompute inline_;
  std::vector<ComputeJob> jobs_;
};

inline double element(Dtype dtype, const std::byte* at) {
  switch (dtype) {
    case Dtype::int32:
      return *reinterpret_cast<const int32_t*>(at);
    case Dtype::int64:
      return static_cast<double>(*reinterpret_cast<const int64_t*>(at));
    case Dtype::float64:
      return *reinterpret_cast<const double*>(at);
    default:
      return *reinterpret_cast<const float*>(at);
  }
}

inline void set_element(Dtype dtype, std::byte* at, double value) {
  switch (dtype) {
    case Dtype::int32:
      *reinterpret_cast<int32_t*>(at) = static_cast<int32_t>(value);
      break;
    case Dtype::int64:
      *reinterpret_cast<int64_t*>(at) = static_cast<int64_t>(value);
      break;
    case Dtype::float64:
      *reinterpret_cast<double*>(at) = value;
      break;
    default:
      *reinterpret_cast<float*>(at) = static_cast<float>(value);
      break;
  }
}

}  // namespace rdmacoll
