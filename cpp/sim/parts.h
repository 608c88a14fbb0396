// Parts of the simulator: slow compute, and memory that runs out.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "base/small_range.h"
#include "compute/inline.h"
#include "compute/job.h"
#include "memory/pool.h"
#include "sim/gpu.h"
#include "sim/gpu_streams.h"
#include "transport/sim/sim_network.h"

namespace rdmacoll {

// Performs jobs some polls after they were submitted, in any order. Jobs on GPUs always take time.
// With lanes, these do them, and their end may be recorded.
class SlowCompute final : public Compute {
 public:
  SlowCompute(SimNetwork& network, bool slow, const SimGpus& gpus)
      : network_(network), slow_(slow), gpus_(gpus) {}

  Status submit(const ComputeJob& job) override {
    const bool on_gpu = job.on_gpu || job.views_gpu;
    RC_ASSERT(on_gpu == touches_gpu(job));
    RC_ASSERT(!on_gpu || sums_ || (is_copy(job) && job.sources[0].remote.empty()));
    if (lanes_ != nullptr && (on_gpu || all_by_lanes_)) {
      lanes_->enqueue(job);
      if (job.is_enqueued != nullptr) *job.is_enqueued = true;
      return {};
    }
    jobs_.push_back(job);
    return {};
  }
  Status perform_at_once(const ComputeJob& job, std::size_t bytes) override {
    RC_ASSERT(!touches_gpu(job));
    if (slow_ || all_by_lanes_) return Status::busy();
    if (before_job_) before_job_();
    return inline_.perform_at_once(job, bytes);
  }
  // Time may pass in it: then the rank is suspended in the middle of a job.
  void call_before_jobs(std::function<void()> before_job) { before_job_ = std::move(before_job); }
  // GPUs make sums, too, and read those of peers.
  void sum_on_gpus() { sums_ = true; }
  // `all`: lanes do all jobs, as if GPUs shared the memory of the host.
  void use(SimLanes& lanes, bool all) {
    lanes_ = &lanes;
    all_by_lanes_ = all;
  }
  std::shared_ptr<const GpuEnd> gpu_end() const override {
    return lanes_ == nullptr ? nullptr : lanes_->end();
  }
  bool poll(ComputeSink& sink) override {
    bool any = lanes_ != nullptr && lanes_->poll(sink);
    for (std::size_t i = 0; i < jobs_.size();) {
      if ((slow_ || jobs_[i].on_gpu || jobs_[i].views_gpu) && network_.chance(0.6)) {
        ++i;
        continue;
      }
      const ComputeJob job = jobs_[i];
      jobs_.erase(jobs_.begin() + static_cast<std::ptrdiff_t>(i));
      perform(job, sink);
      any = true;
    }
    return any;
  }
  bool arm() override { return jobs_.empty() && (lanes_ == nullptr || !lanes_->has_done()); }
  uint64_t bytes_copied() const override { return inline_.bytes_copied(); }

 private:
  static bool touches_gpu(const ComputeJob& job) {
    const auto is_on_gpu = [](const Piece& piece) { return piece.gpu != kHost; };
    return is_any_of(job.to, is_on_gpu) || is_any_of(job.sources, [&](const Operand& operand) {
             return is_any_of(operand.pieces, is_on_gpu) ||
                    is_any_of(operand.remote,
                              [](const RemotePiece& piece) { return piece.gpu != kHost; });
           });
  }
  void perform(const ComputeJob& job, ComputeSink& sink) {
    const bool on_gpu = job.on_gpu || job.views_gpu;
    if (before_job_) before_job_();
    RC_ASSERT(inline_.submit(on_gpu ? ReachedJob(job, gpus_).job() : job).ok());
    inline_.poll(sink);
  }

  SimNetwork& network_;
  bool slow_;
  const SimGpus& gpus_;
  SimLanes* lanes_ = nullptr;
  bool all_by_lanes_ = false;
  bool sums_ = false;
  std::function<void()> before_job_;
  InlineCompute inline_;
  std::vector<ComputeJob> jobs_;
};

// A pool that can run out of memory at a given time.
class SimPool final : public MemoryPool {
 public:
  explicit SimPool(std::size_t bytes) {
    const Status status = create(bytes, pool_);
    RC_ASSERT(status.ok(), status.message());
  }

  void exhaust() { is_dry_ = true; }
  std::byte* allocate(std::size_t bytes) override {
    return is_dry_ ? nullptr : pool_->allocate(bytes);
  }
  std::byte* lend(std::size_t bytes) override { return is_dry_ ? nullptr : pool_->lend(bytes); }
  void free(std::byte* memory) override { pool_->free(memory); }
  void keep_pages() override { pool_->keep_pages(); }
  void shrink(std::size_t bytes) override { pool_->shrink(bytes); }
  bool contains(const void* memory, std::size_t bytes) const override {
    return pool_->contains(memory, bytes);
  }
  std::byte* base() const override { return pool_->base(); }
  std::size_t size() const override { return pool_->size(); }
  std::size_t used() const override { return pool_->used(); }
  int fd() const override { return pool_->fd(); }
  std::byte* view() const override { return pool_->view(); }
  std::shared_ptr<const void> mapping() const override { return pool_->mapping(); }

 private:
  std::unique_ptr<MemoryPool> pool_;
  bool is_dry_ = false;
};

}  // namespace rdmacoll
