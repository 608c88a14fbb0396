#include "cuda/gpu_compute.h"

#include <algorithm>
#include <cstring>

#include "base/text.h"
#include "compute/job.h"

namespace rdmacoll::cuda {
namespace {

// How long the end of a job may stay unseen if a fault of the GPU keeps its wake-up away.
constexpr Nanoseconds kLookInterval = 10 * kMillisecond;

// Walks the pieces of one side of a copy.
class Side {
 public:
  explicit Side(std::span<const Piece> pieces) : pieces_(pieces) { skip(0); }

  void skip(std::size_t bytes) {
    offset_ += bytes;
    while (index_ < pieces_.size() && offset_ >= pieces_[index_].bytes) {
      offset_ -= pieces_[index_].bytes;
      ++index_;
    }
  }
  std::size_t run() const { return pieces_[index_].bytes - offset_; }
  std::byte* data() const { return pieces_[index_].data + offset_; }
  Gpu gpu() const { return pieces_[index_].gpu; }

 private:
  std::span<const Piece> pieces_;
  std::size_t index_ = 0;
  std::size_t offset_ = 0;
};

// Many runs of few bytes are copied by one kernel, since each copy costs a call and a start. Large
// runs are for the copy engines, which leave the multiprocessors to the program.
constexpr std::size_t kRunsOfCopiesMax = 8;
constexpr std::size_t kBytesOfARun = 64 << 10;
bool suits_a_kernel(const ComputeJob& job, std::size_t bytes) {
  const std::size_t runs = std::max(job.to.size(), job.sources.front().pieces.size());
  return runs > kRunsOfCopiesMax && bytes / runs < kBytesOfARun;
}

// The only GPU among the pieces, or kHost if there are several.
Gpu only_gpu(const ComputeJob& job) {
  Gpu gpu = kHost;
  for (const std::span<const Piece> pieces : {job.to, job.sources.front().pieces}) {
    for (const Piece& piece : pieces) {
      if (piece.gpu == kHost) continue;
      if (gpu != kHost && piece.gpu != gpu) return kHost;
      gpu = piece.gpu;
    }
  }
  return gpu;
}

bool are_on_host(std::span<const Piece> pieces) {
  return std::all_of(pieces.begin(), pieces.end(),
                     [](const Piece& piece) { return piece.gpu == kHost; });
}

Address address_of(const std::byte* memory) { return reinterpret_cast<Address>(memory); }

}  // namespace

// The work of one job on GPUs.
class GpuCompute::Work {
 public:
  Work(GpuCompute& compute, const GpuParts& parts, uint16_t job)
      : compute_(compute), parts_(parts), job_(job), used_(compute.used_) {
    used_.clear();
  }

  Status perform(const ComputeJob& job, std::size_t bytes) {
    if (!suits_a_kernel(job, bytes) || !launch(job)) return copy(job, bytes);
    ++compute_.counters_.kernel_launches;
    if (used_.front().second != Way::on_gpu) compute_.counters_.bytes_staged += bytes;
    return {};
  }

  // Notes the end of the job on each lane that it has used. `ends`: how many.
  Status end(std::size_t& ends) {
    Status status;
    for (const LaneKey& key : used_) {
      const Status noted = enter(key.first).ok() ? compute_.lane(key).end(job_) : scope_->status();
      if (noted.ok()) ++ends;
      if (status.ok()) status = noted;
    }
    return status;
  }

 private:
  // Makes the context of a GPU the current one, until the copies are under way.
  Status enter(Gpu gpu) {
    if (!scope_ || gpu != entered_) {
      scope_.reset();
      scope_.emplace(parts_.gpus, gpu);
      entered_ = gpu;
    }
    return scope_->status();
  }

  // False: the GPU cannot perform the job by a kernel.
  bool launch(const ComputeJob& job) {
    const Gpu gpu = only_gpu(job);
    if (gpu == kHost || !enter(gpu).ok()) return false;
    const LaneKey key{gpu, are_on_host(job.to)                       ? Way::to_host
                           : are_on_host(job.sources.front().pieces) ? Way::to_gpu
                                                                     : Way::on_gpu};
    Lane& lane = compute_.lane(key);
    if (!lane.open().ok()) return false;
    if (!compute_.kernels(gpu).launch(job, lane.stream(), compute_.tables_[job_])) return false;
    used_.push_back(key);
    return true;
  }

  Status copy(const ComputeJob& job, std::size_t bytes) {
    Side to(job.to), from(job.sources.front().pieces);
    for (std::size_t done = 0; done < bytes;) {
      const std::size_t run = std::min({to.run(), from.run(), reach(to), reach(from)});
      RC_RETURN_IF_ERROR(copy_run(to, from, run));
      to.skip(run);
      from.skip(run);
      done += run;
    }
    return {};
  }

  std::size_t reach(const Side& side) const {
    return side.gpu() == kHost ? parts_.pinned.reach(side.data()) : SIZE_MAX;
  }

  Status copy_run(const Side& to, const Side& from, std::size_t bytes) {
    if (to.gpu() == kHost && from.gpu() == kHost) {
      std::memcpy(to.data(), from.data(), bytes);
      return {};
    }
    const LaneKey key = to.gpu() == kHost     ? LaneKey{from.gpu(), Way::to_host}
                        : from.gpu() == kHost ? LaneKey{to.gpu(), Way::to_gpu}
                                              : LaneKey{to.gpu(), Way::on_gpu};
    RC_RETURN_IF_ERROR(enter(key.first));
    Lane& lane = compute_.lane(key);
    RC_RETURN_IF_ERROR(lane.open());
    if (std::find(used_.begin(), used_.end(), key) == used_.end()) used_.push_back(key);
    const Driver& driver = parts_.gpus.driver();
    const Result result = enqueue(to, from, bytes, lane.stream());
    if (result == kSuccess) {
      if (key.second != Way::on_gpu) compute_.counters_.bytes_staged += bytes;
      return {};
    }
    return driver.error(
        result, cat("a copy of ", bytes_text(bytes), " on ", parts_.gpus.facts(key.first).text()));
  }

  Result enqueue(const Side& to, const Side& from, std::size_t bytes, StreamHandle stream) {
    const Functions& call = parts_.gpus.driver().call;
    if (to.gpu() == kHost) {
      parts_.pinned.pin(to.data(), bytes, from.gpu());
      return call.cuMemcpyDtoHAsync_v2(to.data(), address_of(from.data()), bytes, stream);
    }
    if (from.gpu() == kHost) {
      parts_.pinned.pin(from.data(), bytes, to.gpu());
      return call.cuMemcpyHtoDAsync_v2(address_of(to.data()), from.data(), bytes, stream);
    }
    if (to.gpu() == from.gpu()) {
      return call.cuMemcpyDtoDAsync_v2(address_of(to.data()), address_of(from.data()), bytes,
                                       stream);
    }
    return call.cuMemcpyPeerAsync(address_of(to.data()), parts_.gpus.context(to.gpu()),
                                  address_of(from.data()), parts_.gpus.context(from.gpu()), bytes,
                                  stream);
  }

  GpuCompute& compute_;
  const GpuParts& parts_;
  const uint16_t job_;
  std::optional<ScopedContext> scope_;
  Gpu entered_ = kHost;
  std::vector<LaneKey>& used_;
};

GpuCompute::GpuCompute(std::unique_ptr<Compute> host, const Clock& clock)
    : host_(std::move(host)), clock_(clock) {
  for (uint16_t slot = kJobsMax; slot > 0; --slot) free_.push_back(static_cast<uint16_t>(slot - 1));
}

Lane& GpuCompute::lane(const LaneKey& key) {
  const GpuParts& parts = *parts_.load(std::memory_order_relaxed);
  return lanes_.try_emplace(key, parts.gpus, key.first, parts.events).first->second;
}

GpuKernels& GpuCompute::kernels(Gpu gpu) {
  const GpuParts& parts = *parts_.load(std::memory_order_relaxed);
  return kernels_.try_emplace(gpu, parts.gpus, gpu, parts.pinned, parts.pool, parts.log)
      .first->second;
}

Status GpuCompute::submit(const ComputeJob& job) {
  if (!job.on_gpu) return host_->submit(job);
  const GpuParts* const parts = parts_.load(std::memory_order_acquire);
  RC_ASSERT(parts != nullptr && is_copy(job) && job.sources.front().remote.empty(),
            "a job that the GPU does not perform");
  if (free_.empty()) return Status::busy();
  const uint16_t index = free_.back();
  free_.pop_back();
  Slot& slot = slots_[index];
  slot = {job.cookie};
  std::size_t bytes = 0;
  slot.status = measure(job, bytes);
  Work work(*this, *parts, index);
  if (slot.status.ok()) slot.status = work.perform(job, bytes);
  // After an error, too: copies before it may still use the memory.
  const Status noted = work.end(slot.ends);
  if (slot.status.ok()) slot.status = noted;
  bytes_on_gpus_ += bytes;
  ++in_flight_;
  if (slot.ends == 0) ended_.push_back(index);
  return {};
}

// Finds the jobs that have ended on all their lanes.
bool GpuCompute::end_jobs() {
  const RelaxedCapture relaxed(parts_.load(std::memory_order_relaxed)->gpus.driver());
  for (auto& [key, lane] : lanes_) {
    uint16_t index = 0;
    for (Status status; lane.take_ended(index, status); status = {}) {
      Slot& slot = slots_[index];
      if (slot.status.ok()) slot.status = std::move(status);
      if (--slot.ends == 0) ended_.push_back(index);
    }
  }
  return !ended_.empty();
}

bool GpuCompute::poll(ComputeSink& sink) {
  const bool moved = host_->poll(sink);
  if (in_flight_ == 0 || !end_jobs()) return moved;
  // The sink may submit again.
  reported_.swap(ended_);
  for (const uint16_t index : reported_) {
    const Slot ended = std::exchange(slots_[index], {});
    free_.push_back(index);
    --in_flight_;
    sink.computed(ended.cookie, ended.status);
  }
  reported_.clear();
  return true;
}

bool GpuCompute::arm() {
  if (!host_->arm()) return false;
  if (in_flight_ == 0) return true;
  if (!ended_.empty()) return false;
  const GpuParts& parts = *parts_.load(std::memory_order_relaxed);
  const RelaxedCapture relaxed(parts.gpus.driver());
  // Armed before the last look at the events. Otherwise one could pass in between.
  parts.sleeper->arm();
  return std::all_of(lanes_.begin(), lanes_.end(), [&](auto& entry) {
    return entry.second.is_idle() || entry.second.watch(parts.sleeper);
  });
}

Nanoseconds GpuCompute::next_deadline() const {
  return in_flight_ == 0 ? kNever : clock_.now() + kLookInterval;
}

}  // namespace rdmacoll::cuda
