// Performs jobs with memory of GPUs by copies or kernels on streams of the engine, and hands all
// other jobs to another Compute.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "compute/compute.h"
#include "cuda/bar_writes.h"
#include "cuda/gpu_kernels.h"
#include "cuda/gpu_sums.h"
#include "cuda/lane.h"
#include "cuda/pinned_pool.h"

namespace rdmacoll::cuda {

// They outlive the compute.
struct GpuParts {
  const Gpus& gpus;
  std::shared_ptr<EventPool> events;
  GpuModules& modules;
  PinnedPool& pinned;
  MemoryPool& pool;
  const GpuSums& sums;
  std::shared_ptr<Sleeper> sleeper;
  BarWrites* bar_writes = nullptr;  // null: all is copied
};

class GpuCompute final : public Compute {
 public:
  GpuCompute(std::unique_ptr<Compute> host, const Clock& clock);

  // Before the first job on a GPU. Any thread may call it, once.
  void open(const GpuParts& parts) { parts_.store(&parts, std::memory_order_release); }

  Status submit(const ComputeJob& job) override;
  Status perform_at_once(const ComputeJob& job, std::size_t bytes) override {
    return host_->perform_at_once(job, bytes);
  }
  bool poll(ComputeSink& sink) override;
  bool hand_over(std::function<void()> task) override { return host_->hand_over(std::move(task)); }
  void finish_tasks() override { host_->finish_tasks(); }
  bool arm() override;
  // A faulty GPU calls nobody, so its jobs are looked at from time to time.
  Nanoseconds next_deadline() const override;
  void drop_waiting() override { host_->drop_waiting(); }
  uint64_t bytes_copied() const override { return host_->bytes_copied() + bytes_on_gpus_; }
  GpuCounters gpu_counters() const override;
  std::shared_ptr<const GpuEnd> gpu_end() const override;

 private:
  static constexpr std::size_t kJobsMax = 256;
  enum class Way : uint8_t { to_host, to_gpu, on_gpu };
  using LaneKey = std::pair<Gpu, Way>;
  struct Slot {
    uint64_t cookie = 0;
    Status status;
    std::size_t ends = 0;                     // lanes on which the job has not ended
    std::vector<std::shared_ptr<void>> kept;  // memory of the job alone
  };
  // A job whose operands are pieces of this process, with the memory that they need.
  struct LocalJob {
    ComputeJob job;
    std::vector<Operand> operands;
    std::vector<std::vector<Piece>> pieces;  // by operand, of those that are views
  };
  // A part of such a job, whose operands are together no larger than the scratch memory of a GPU.
  struct JobPart {
    ComputeJob job;
    std::vector<Operand> operands;
    std::vector<std::vector<Piece>> pieces;  // by operand, then those of the result
    std::vector<Piece> brought;              // likewise, in scratch memory
  };
  class Work;

  Lane& lane(const LaneKey& key);
  GpuKernels& kernels(Gpu gpu);
  Status localize(const ComputeJob& job, Slot& slot);
  Status read(const Operand& view, Slot& slot, std::vector<Piece>& pieces);
  bool end_jobs();

  const std::unique_ptr<Compute> host_;
  const Clock& clock_;
  std::atomic<const GpuParts*> parts_{nullptr};
  std::map<Gpu, GpuKernels> kernels_;
  std::array<LaunchTable, kJobsMax> tables_;  // by slot, used again
  std::map<LaneKey, Lane> lanes_;             // destroyed first, since they wait for their work
  std::array<Slot, kJobsMax> slots_;
  std::vector<uint16_t> free_;
  std::vector<uint16_t> ended_, reported_;
  std::vector<LaneKey> used_;  // lanes of the job that is submitted
  LocalJob local_;             // the job that is submitted
  JobPart part_;               // a part of local_
  std::size_t in_flight_ = 0;  // jobs that have not ended
  uint64_t bytes_on_gpus_ = 0;
  GpuCounters counters_;
};

}  // namespace rdmacoll::cuda
