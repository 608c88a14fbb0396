#include "cuda/gpu_compute.h"

#include <algorithm>
#include <cstring>

#include "base/text.h"
#include "compute/job.h"
#include "cuda/end_of_lanes.h"
#include "cuda/job_pieces.h"

namespace rdmacoll::cuda {
namespace {

// How long the end of a job may stay unseen if a fault of the GPU keeps its wake-up away.
constexpr Nanoseconds kLookInterval = 10 * kMillisecond;

// Many runs of few bytes are copied by one kernel, since each copy costs a call and a start. Large
// runs are for the copy engines, which leave the multiprocessors to the program.
constexpr std::size_t kRunsOfCopiesMax = 8;
constexpr std::size_t kBytesOfARun = 64 << 10;
bool suits_a_kernel(const ComputeJob& job, std::size_t bytes) {
  const std::size_t runs = std::max(job.to.size(), job.sources.front().pieces.size());
  return runs > kRunsOfCopiesMax && bytes / runs < kBytesOfARun;
}

Address address_of(const std::byte* memory) { return reinterpret_cast<Address>(memory); }

// Operands in scratch memory begin at multiples of it, which no element crosses.
constexpr std::size_t kScratchAlignment = 256;

}  // namespace

// The work of one job on GPUs.
class GpuCompute::Work {
 public:
  Work(GpuCompute& compute, const GpuParts& parts, uint16_t job)
      : compute_(compute), parts_(parts), job_(job), used_(compute.used_) {
    used_.clear();
  }

  Status perform(const ComputeJob& job, std::size_t bytes) {
    if (is_copy(job)) {
      if (parts_.bar_writes != nullptr && parts_.bar_writes->write(job, bytes)) {
        compute_.counters_.bytes_written += bytes;
        return {};
      }
      if (suits_a_kernel(job, bytes)) {
        const Status launched = launch(job, bytes, table());
        if (launched.ok()) return {};
        if (!launched.is_busy()) parts_.modules.say_not_launched(launched);
      }
      return copy(job.to, job.sources.front().pieces, nullptr);
    }
    Status status = launch(job, bytes, table());
    if (status.is_busy()) status = bring_and_launch(job, bytes);
    if (status.ok()) return status;
    return {status.code(),
            cat(status.message(), " With RDMACOLL_CUDA_IPC=off, processors make the sums.")};
  }

  // Notes the end of the job on each lane that it has used. `ends`: how many.
  Status end(const ComputeJob& job, std::size_t& ends) {
    const char* const what = is_copy(job) ? "a copy" : "a sum";
    Status status;
    for (const LaneKey& key : used_) {
      const Status noted =
          enter(key.first).ok() ? compute_.lane(key).end(job_, what) : scope_->status();
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

  void use(const LaneKey& key) {
    if (std::find(used_.begin(), used_.end(), key) == used_.end()) used_.push_back(key);
  }

  LaunchTable& table() { return compute_.tables_[job_]; }

  // Busy: no kernel performs the job on memory where it lies.
  Status launch(const ComputeJob& job, std::size_t bytes, LaunchTable& table) {
    const Gpu gpu = only_gpu(job);
    if (gpu == kHost) return Status::busy();
    RC_RETURN_IF_ERROR(enter(gpu));
    const bool is_to_host = is_copy(job) && are_on(kHost, job.to);
    const bool is_to_gpu = is_copy(job) && are_on(kHost, job.sources.front().pieces);
    const LaneKey key{gpu, is_to_host ? Way::to_host : is_to_gpu ? Way::to_gpu : Way::on_gpu};
    Lane& lane = compute_.lane(key);
    RC_RETURN_IF_ERROR(lane.open());
    RC_RETURN_IF_ERROR(compute_.kernels(gpu).launch(job, lane.stream(), table));
    use(key);
    ++compute_.counters_.kernel_launches;
    if (key.second != Way::on_gpu) compute_.counters_.bytes_staged += bytes;
    return {};
  }

  // Brings all operands to the scratch memory of one GPU, and the result back from there, part by
  // part. All this is work of one stream, so the next part and the next job may use the memory.
  Status bring_and_launch(const ComputeJob& job, std::size_t bytes) {
    const LaneKey key{main_gpu(job), Way::on_gpu};
    const Piece scratch = parts_.sums.scratch(key.first);
    std::size_t width = are_on(key.first, job.to) ? 0 : job.width();
    for (const Operand& operand : job.sources) {
      width += are_on(key.first, operand.pieces) ? 0 : operand.width();
    }
    if (scratch.bytes == 0 || width == 0) {
      return {Code::failed, cat("no kernel for ", name_of(job.op), " of ", name_of(job.dtype),
                                " starts on ", parts_.gpus.facts(key.first).text(), ".")};
    }
    const std::size_t step = scratch.bytes / width / kScratchAlignment * kScratchAlignment;
    for (std::size_t begin = 0; begin < bytes; begin += step) {
      const std::size_t length = std::min(step, bytes - begin);
      cut_part(job, begin, length);
      RC_RETURN_IF_ERROR(bring_and_launch_part(key, scratch, length));
    }
    return {};
  }

  // Makes `part_` the given bytes of the job.
  void cut_part(const ComputeJob& job, std::size_t begin, std::size_t bytes) {
    JobPart& part = compute_.part_;
    part.job = job;
    part.operands.assign(job.sources.begin(), job.sources.end());
    const std::size_t count = part.operands.size();
    part.pieces.resize(std::max(part.pieces.size(), count + 1));
    part.brought.resize(count + 1);
    for (std::size_t i = 0; i < count; ++i) {
      Operand& operand = part.operands[i];
      cut_out(operand.pieces, begin * operand.width(), bytes * operand.width(), part.pieces[i]);
      operand.pieces = part.pieces[i];
    }
    cut_out(job.to, begin * job.width(), bytes * job.width(), part.pieces[count]);
    part.job.to = part.pieces[count];
    part.job.sources = part.operands;
  }

  Status bring_and_launch_part(const LaneKey& key, const Piece& scratch, std::size_t bytes) {
    JobPart& part = compute_.part_;
    std::byte* free = scratch.data;
    const auto take = [&](std::size_t index, std::size_t taken) {
      part.brought[index] = {free, taken, key.first};
      free += (taken + kScratchAlignment - 1) / kScratchAlignment * kScratchAlignment;
      return std::span<const Piece>(&part.brought[index], 1);
    };
    for (std::size_t i = 0; i < part.operands.size(); ++i) {
      Operand& operand = part.operands[i];
      if (are_on(key.first, operand.pieces)) continue;
      const std::span<const Piece> there = take(i, bytes * operand.width());
      RC_RETURN_IF_ERROR(copy(there, operand.pieces, &key));
      operand.pieces = there;
    }
    const std::span<const Piece> wanted = part.job.to;
    const bool is_there = are_on(key.first, wanted);
    if (!is_there) part.job.to = take(part.operands.size(), bytes * part.job.width());
    // The launches before it may still read their tables.
    const auto own_table = std::make_shared<LaunchTable>();
    const Status status = launch(part.job, bytes, *own_table);
    if (own_table->memory() != nullptr) compute_.slots_[job_].kept.push_back(own_table);
    if (status.is_busy()) {
      return {Code::failed,
              cat("the kernel for ", name_of(part.job.op), " of ", name_of(part.job.dtype),
                  " cannot run on ", parts_.gpus.facts(key.first).text(), ".")};
    }
    RC_RETURN_IF_ERROR(status);
    return is_there ? Status() : copy(wanted, part.job.to, &key);
  }

  // `lane`: for all parts of the copy. Null: one for each direction.
  Status copy(std::span<const Piece> into, std::span<const Piece> source, const LaneKey* lane) {
    Side to(into), from(source);
    const std::size_t bytes = total_bytes(into);
    for (std::size_t done = 0; done < bytes;) {
      const std::size_t run =
          std::min({to.run(), from.run(), reach(to), reach(from), bytes - done});
      RC_RETURN_IF_ERROR(copy_run(to, from, run, lane));
      to.skip(run);
      from.skip(run);
      done += run;
    }
    return {};
  }

  std::size_t reach(const Side& side) const {
    return side.gpu() == kHost ? parts_.pinned.reach(side.data()) : SIZE_MAX;
  }

  Status copy_run(const Side& to, const Side& from, std::size_t bytes, const LaneKey* fixed) {
    if (to.gpu() == kHost && from.gpu() == kHost) {
      std::memcpy(to.data(), from.data(), bytes);
      return {};
    }
    const LaneKey key = fixed != nullptr      ? *fixed
                        : to.gpu() == kHost   ? LaneKey{from.gpu(), Way::to_host}
                        : from.gpu() == kHost ? LaneKey{to.gpu(), Way::to_gpu}
                                              : LaneKey{to.gpu(), Way::on_gpu};
    RC_RETURN_IF_ERROR(enter(key.first));
    Lane& lane = compute_.lane(key);
    RC_RETURN_IF_ERROR(lane.open());
    use(key);
    const Driver& driver = parts_.gpus.driver();
    const Result result = enqueue(to, from, bytes, lane.stream());
    if (result == kSuccess) {
      const bool is_staged = to.gpu() == kHost || from.gpu() == kHost;
      if (is_staged) compute_.counters_.bytes_staged += bytes;
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
    // The driver knows whose memory it is. Memory of another GPU may count as of the one that has
    // opened it.
    return call.cuMemcpyDtoDAsync_v2(address_of(to.data()), address_of(from.data()), bytes, stream);
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
  return kernels_.try_emplace(gpu, parts.gpus, gpu, parts.modules, parts.pinned, parts.pool)
      .first->second;
}

// Turns views into pieces of this process. They stay as long as the job that is submitted.
Status GpuCompute::localize(const ComputeJob& job, Slot& slot) {
  local_.job = job;
  local_.operands.assign(job.sources.begin(), job.sources.end());
  local_.pieces.resize(std::max(local_.pieces.size(), local_.operands.size()));
  for (std::size_t i = 0; i < local_.operands.size(); ++i) {
    Operand& operand = local_.operands[i];
    if (!operand.pieces.empty() || operand.remote.empty()) continue;
    RC_RETURN_IF_ERROR(read(operand, slot, local_.pieces[i]));
    operand.pieces = local_.pieces[i];
    operand.remote = {};
  }
  local_.job.sources = local_.operands;
  return {};
}

// Memory that is not mapped is read into the pool.
Status GpuCompute::read(const Operand& view, Slot& slot, std::vector<Piece>& pieces) {
  pieces.clear();
  std::size_t bytes = 0;
  bool is_mapped = true;
  for (const RemotePiece& piece : view.remote) {
    pieces.push_back({const_cast<std::byte*>(piece.mapped), piece.bytes, piece.gpu});
    bytes += piece.bytes;
    is_mapped = is_mapped && piece.mapped != nullptr;
    if (piece.gpu != kHost) counters_.bytes_between_gpus += piece.bytes;
  }
  if (is_mapped) return {};
  RC_ASSERT(view.reader != nullptr, "a view that cannot be read");
  MemoryPool& pool = parts_.load(std::memory_order_relaxed)->pool;
  std::byte* const memory = pool.allocate(bytes);
  if (memory == nullptr) return pool_exhausted(pool, bytes);
  slot.kept.emplace_back(memory, [&pool](void* data) { pool.free(static_cast<std::byte*>(data)); });
  pieces.assign(1, {memory, bytes});
  return view.reader->read(view.remote, 0, memory, bytes);
}

Status GpuCompute::submit(const ComputeJob& job) {
  if (!job.on_gpu && !job.views_gpu) return host_->submit(job);
  const GpuParts* const parts = parts_.load(std::memory_order_acquire);
  RC_ASSERT(parts != nullptr, "a job on a GPU that is not open");
  if (free_.empty()) return Status::busy();
  const uint16_t index = free_.back();
  free_.pop_back();
  Slot& slot = slots_[index];
  slot.cookie = job.cookie;
  std::size_t bytes = 0;
  slot.status = measure(job, bytes);
  if (slot.status.ok()) slot.status = localize(job, slot);
  Work work(*this, *parts, index);
  if (slot.status.ok()) slot.status = work.perform(local_.job, bytes);
  // An error ends the work on the stream, too: copies before the error may still use the memory.
  const Status noted = work.end(job, slot.ends);
  if (slot.status.ok()) slot.status = noted;
  bytes_on_gpus_ += bytes;
  ++in_flight_;
  if (slot.ends == 0) ended_.push_back(index);
  if (job.is_enqueued != nullptr) *job.is_enqueued = slot.status.ok() && slot.ends > 0;
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
    tables_[index].trim();
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

GpuCounters GpuCompute::gpu_counters() const {
  GpuCounters counters = counters_;
  const GpuParts* const parts = parts_.load(std::memory_order_acquire);
  if (parts != nullptr) counters.preparing = parts->sums.preparing();
  return counters;
}

std::shared_ptr<const GpuEnd> GpuCompute::gpu_end() const {
  std::vector<std::shared_ptr<const SharedEvent>> events;
  for (const auto& [key, lane] : lanes_) {
    if (auto event = lane.last(); event != nullptr) events.push_back(std::move(event));
  }
  if (events.empty()) return nullptr;
  return std::make_shared<const EndOfLanes>(std::move(events));
}

Nanoseconds GpuCompute::next_deadline() const {
  return in_flight_ == 0 ? kNever : clock_.now() + kLookInterval;
}

}  // namespace rdmacoll::cuda
