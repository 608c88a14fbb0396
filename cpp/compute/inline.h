// Performs a job inside submit() and reports it in poll(). For the simulator, and for worlds in
// which a hand-over between threads would cost more than the work.
#pragma once

#include <array>
#include <cstdint>

#include "compute/compute.h"
#include "compute/job.h"

namespace rdmacoll {

class InlineCompute final : public Compute {
 public:
  Status submit(const ComputeJob& job) override;
  Status perform_at_once(const ComputeJob& job, std::size_t bytes) override;
  bool poll(ComputeSink& sink) override;
  bool arm() override { return count_ == 0; }

 private:
  struct Done {
    uint64_t cookie = 0;
    Status status;
  };
  // The largest number of unreported completions. Beyond it, submit() is busy.
  static constexpr std::size_t kDoneMax = 256;

  Workspace workspace_;
  std::array<Done, kDoneMax> done_;
  std::size_t count_ = 0;
};

}  // namespace rdmacoll
