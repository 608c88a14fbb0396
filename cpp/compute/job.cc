#include "compute/job.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <new>

#include "base/text.h"
#include "compute/float_mode.h"
#include "compute/reduce_kernels.h"
#include "memory/placement.h"
#include "memory/streaming.h"

namespace rdmacoll {
namespace {

// Every element size divides it. A read is a multiple of it, except the last one.
constexpr std::size_t kReadUnit = 64;
constexpr std::size_t kBounceBytesMin = 128 << 10;
constexpr std::size_t kBounceBytesMax = 512 << 10;
constexpr std::size_t kUsualCacheBytes = 512 << 10;
constexpr std::size_t kBounceAlignment = 4096;

// The size of all bounce buffers of a thread together. It is half of the second-level cache, so
// that bytes from the reader are still there when the reduction reads them.
std::size_t bounce_bytes() {
  static const std::size_t kBytes = [] {
    const int64_t known = ::sysconf(_SC_LEVEL2_CACHE_SIZE);
    const std::size_t cache = known > 0 ? static_cast<std::size_t>(known) : kUsualCacheBytes;
    return std::clamp(cache / 2, kBounceBytesMin, kBounceBytesMax);
  }();
  return kBytes;
}

// Largest read through a bounce buffer. Smaller reads need more system calls (AMD EPYC, 2026-11-28:
// with a quarter of it, sums in place from 4 MiB on take 1.12 times as long).
std::size_t read_bytes_max() { return bounce_bytes() / 2 / kReadUnit * kReadUnit; }

constexpr std::size_t kUnmappedSourcesMax = kBounceBytesMin / kReadUnit;

// A sum that is streamed is first made in the first-level cache, tile by tile.
constexpr std::size_t kTileBytes = 8 << 10;

bool is_fully_mapped(const Operand& operand) {
  return std::all_of(operand.remote.begin(), operand.remote.end(),
                     [](const RemotePiece& piece) { return piece.mapped != nullptr; });
}

// Whether a reader must copy the operand, since it is not addressable.
bool is_read(const Operand& operand) { return operand.pieces.empty() && !is_fully_mapped(operand); }

// The address of an operand in one piece. Null if it has several pieces, or has to be read.
const std::byte* only_piece(const Operand& operand) {
  if (operand.pieces.size() == 1) return operand.pieces.front().data;
  const bool is_one = operand.pieces.empty() && operand.remote.size() == 1;
  return is_one ? operand.remote.front().mapped : nullptr;
}

Status misfit(const std::string& what) {
  return Status(Code::failed, cat("operands of one reduction do not fit together: ", what, "."));
}

}  // namespace

PieceCursor::PieceCursor(const Operand& operand) : local_(operand.pieces) {
  if (operand.pieces.empty()) remote_ = operand.remote;
  skip(0);
}

std::size_t PieceCursor::bytes_here() const {
  return remote_.empty() ? local_[index_].bytes : remote_[index_].bytes;
}

void PieceCursor::skip(std::size_t bytes) {
  offset_ += bytes;
  while (!at_end() && offset_ >= bytes_here()) {  // steps over empty pieces, too
    offset_ -= bytes_here();
    ++index_;
  }
}

std::size_t PieceCursor::run() const { return at_end() ? 0 : bytes_here() - offset_; }

std::byte* PieceCursor::address() const {
  if (remote_.empty()) return local_[index_].data + offset_;
  const std::byte* mapped = remote_[index_].mapped;
  // The kernels only read sources.
  return mapped == nullptr ? nullptr : const_cast<std::byte*>(mapped) + offset_;
}

Workspace::Workspace()
    : bounce_(static_cast<std::byte*>(
          ::operator new (kAwayFromArrays + bounce_bytes(), std::align_val_t{kBounceAlignment}))) {}

void Workspace::Unmap::operator()(std::byte* memory) const {
  ::operator delete (memory, std::align_val_t{kBounceAlignment});
}

bool is_copy(const ComputeJob& job) {
  return job.sources.size() == 1 && job.divisor == 1.0 && job.factor == 1.0 && !job.mixes;
}

Status measure(const ComputeJob& job, std::size_t& bytes) {
  bytes = total_bytes(job.to) / job.width();
  RC_ASSERT(!job.sources.empty(), "a job without sources");
  RC_ASSERT(is_copy(job) || is_reducible(job.dtype, job.op), name_of(job.dtype).data());
  RC_ASSERT(job.op != ReduceOp::average, "an average is a sum with a divisor");
  RC_ASSERT(bytes % size_of(job.dtype) == 0, cat(bytes, " bytes of ", name_of(job.dtype)));
  std::size_t unmapped = 0;
  for (std::size_t i = 0; i < job.sources.size(); ++i) {
    const Operand& source = job.sources[i];
    std::size_t found = total_bytes(source.pieces);
    if (source.pieces.empty()) {
      for (const RemotePiece& piece : source.remote) found += piece.bytes;
      if (!is_fully_mapped(source)) {
        if (source.reader == nullptr) return misfit(cat("operand ", i, " cannot be read"));
        ++unmapped;
      }
    }
    if (found != bytes * source.width()) {
      return misfit(
          cat("operand ", i, " has ", found, " bytes instead of ", bytes * source.width()));
    }
  }
  RC_ASSERT(unmapped <= kUnmappedSourcesMax, cat(unmapped, " operands to be read"));
  return {};
}

void copy_through_cache(std::byte* to, const std::byte* from, std::size_t bytes) {
  std::memcpy(to, from, bytes);
}

// One call of perform().
class Performance {
 public:
  Performance(const ComputeJob& job, std::size_t first, bool streams, Workspace& workspace)
      : job_(job), workspace_(workspace), to_(job.to), streams_(streams) {
    to_.skip(first * job.width());
    open_sources(first);
  }

  static Status perform(const ComputeJob& job, std::size_t first, std::size_t bytes,
                        Workspace& workspace);

 private:
  // Performs a job whose operands have one piece each, as most small jobs do. Returns false, with
  // nothing done, for other jobs.
  static bool in_one_piece(const ComputeJob& job, std::size_t first, std::size_t bytes,
                           Workspace& workspace);
  Status copy(std::size_t bytes);
  Status reduce(std::size_t bytes);

  using Source = Workspace::Source;

  void open_sources(std::size_t first);
  Status fill_bounce_buffers(std::size_t bytes);
  Status reduce_addressable(std::size_t bytes);
  void reduce_run(std::size_t bytes);
  static void reduce_at(const ComputeJob& job, Workspace& workspace, std::byte* to,
                        std::size_t bytes);

  const ComputeJob& job_;
  Workspace& workspace_;
  PieceCursor to_;
  const bool streams_;
  std::size_t read_bytes_ = 0;  // read at a time through each bounce buffer; 0: no operand is read
};

Status Performance::perform(const ComputeJob& job, std::size_t first, std::size_t bytes,
                            Workspace& workspace) {
  StorePolicy& writes = workspace.store_policy_;
  // Only plain copies are measured. A sum, or a copy by the kernel, takes other time than its
  // writes. So it follows the choice for copies of its size.
  const bool copies = is_copy(job);
  const bool measures = job.shown && copies && !is_read(job.sources.front());
  const auto begin_write = [&] {
    if (job.tries_writes) return writes.begin(bytes);
    return writes.begin_compared(job.to.front().data + first * job.width(), bytes);
  };
  const bool is_long = !job.is_lent && !job.shown && total_bytes(job.to) >= kStreamedBytesMin;
  const bool streams = job.past_cache || is_long || (measures && begin_write()) ||
                       (job.shown && !measures && writes.go_past_cache(bytes));
  if (!streams && in_one_piece(job, first, bytes, workspace)) {
    if (measures) writes.end();
    return {};
  }
  Performance performance(job, first, streams, workspace);
  const FloatMode exact;
  const Status status = copies ? performance.copy(bytes) : performance.reduce(bytes);
  end_streams();  // before other ranks are told
  if (measures) writes.end();
  return status;
}

bool Performance::in_one_piece(const ComputeJob& job, std::size_t first, std::size_t bytes,
                               Workspace& workspace) {
  if (job.to.size() != 1) return false;
  std::vector<const void*>& addresses = workspace.addresses_;
  addresses.clear();
  for (const Operand& source : job.sources) {
    const std::byte* begin = only_piece(source);
    if (begin == nullptr) return false;
    addresses.push_back(begin + first * source.width());
  }
  std::byte* to = job.to.front().data + first * job.width();
  if (is_copy(job)) {
    if (to != addresses.front()) std::memcpy(to, addresses.front(), bytes);
    return true;
  }
  const FloatMode exact;
  reduce_at(job, workspace, to, bytes);
  return true;
}

// Reduces the sources at workspace.addresses_.
void Performance::reduce_at(const ComputeJob& job, Workspace& workspace, std::byte* to,
                            std::size_t bytes) {
  const std::vector<const void*>& from = workspace.addresses_;
  const std::size_t count = bytes / size_of(job.dtype);
  const Scaling scaling{job.divisor, job.factor, job.prescale};
  if (!job.mixes) {
    return reduce_kernel(job.dtype, job.op)(to, from.data(), from.size(), count, scaling);
  }
  workspace.wide_.clear();
  for (const Operand& source : job.sources) workspace.wide_.push_back(source.wide ? 1 : 0);
  mixed_kernel(job.dtype, job.op)(to, from.data(), from.size(), count, scaling,
                                  {workspace.wide_.data(), job.wide});
}

void Performance::open_sources(std::size_t first) {
  workspace_.sources_.resize(job_.sources.size());
  workspace_.addresses_.resize(job_.sources.size());
  std::size_t unmapped = 0;
  for (std::size_t i = 0; i < job_.sources.size(); ++i) {
    const Operand& operand = job_.sources[i];
    const bool is_unmapped = is_read(operand);
    workspace_.sources_[i] = {PieceCursor(operand), is_unmapped ? operand.reader : nullptr,
                              nullptr};
    workspace_.sources_[i].cursor.skip(first * operand.width());
    if (is_unmapped) unmapped += operand.width();
  }
  if (unmapped == 0) return;
  read_bytes_ = std::min(read_bytes_max(), bounce_bytes() / unmapped / kReadUnit * kReadUnit);
  std::byte* next = workspace_.bounce_.get() + kAwayFromArrays;
  for (std::size_t i = 0; i < job_.sources.size(); ++i) {
    if (workspace_.sources_[i].reader == nullptr) continue;
    workspace_.sources_[i].bounce = next;
    next += read_bytes_ * job_.sources[i].width();
  }
}

// Copies straight into the destination, without a bounce buffer. The reader is called once for each
// piece of it.
Status Performance::copy(std::size_t bytes) {
  Source& source = workspace_.sources_[0];
  while (bytes > 0) {
    std::size_t run = std::min(bytes, to_.run());
    if (source.reader != nullptr) {
      RC_RETURN_IF_ERROR(
          source.reader->read(source.cursor.rest(), source.cursor.offset(), to_.address(), run));
    } else {
      run = std::min(run, source.cursor.run());
      // A copy onto itself needs no work.
      if (to_.address() != source.cursor.address()) {
        const auto copy_bytes = streams_ ? &stream : &copy_through_cache;
        copy_bytes(to_.address(), source.cursor.address(), run);
      }
    }
    source.cursor.skip(run);
    to_.skip(run);
    bytes -= run;
  }
  return {};
}

Status Performance::reduce(std::size_t bytes) {
  if (read_bytes_ == 0) return reduce_addressable(bytes);
  while (bytes > 0) {
    const std::size_t now = std::min(bytes, read_bytes_);
    RC_RETURN_IF_ERROR(fill_bounce_buffers(now));
    RC_RETURN_IF_ERROR(reduce_addressable(now));
    bytes -= now;
  }
  return {};
}

Status Performance::fill_bounce_buffers(std::size_t bytes) {
  for (std::size_t i = 0; i < job_.sources.size(); ++i) {
    Source& source = workspace_.sources_[i];
    if (source.reader == nullptr) continue;
    const std::size_t now = bytes * job_.sources[i].width();
    RC_RETURN_IF_ERROR(
        source.reader->read(source.cursor.rest(), source.cursor.offset(), source.bounce, now));
    source.cursor.skip(now);
  }
  return {};
}

// The operands are cut at different places. The kernel gets runs in which no piece of an operand
// ends. Bytes in a bounce buffer begin at its start, and there are at least `bytes` of them.
Status Performance::reduce_addressable(std::size_t bytes) {
  const std::size_t element = size_of(job_.dtype);
  for (std::size_t done = 0; done < bytes;) {
    std::size_t run = std::min(bytes - done, to_.run() / job_.width());
    for (std::size_t i = 0; i < workspace_.sources_.size(); ++i) {
      const Source& source = workspace_.sources_[i];
      const std::size_t width = job_.sources[i].width();
      if (source.reader != nullptr) {
        workspace_.addresses_[i] = source.bounce + done * width;
      } else {
        workspace_.addresses_[i] = source.cursor.address();
        run = std::min(run, source.cursor.run() / width);
      }
    }
    if (run == 0 || run % element != 0) return misfit("a piece ends inside an element");
    reduce_run(run);
    to_.skip(run * job_.width());
    for (std::size_t i = 0; i < workspace_.sources_.size(); ++i) {
      Source& source = workspace_.sources_[i];
      if (source.reader == nullptr) source.cursor.skip(run * job_.sources[i].width());
    }
    done += run;
  }
  return {};
}

// A destination that is also a source has just been read into the cache, so it is not streamed.
void Performance::reduce_run(std::size_t bytes) {
  std::vector<const void*>& from = workspace_.addresses_;
  std::byte* to = to_.address();
  if (!streams_ || std::find(from.begin(), from.end(), to) != from.end()) {
    return reduce_at(job_, workspace_, to, bytes);
  }
  alignas(64) std::byte tile[kTileBytes];
  const std::size_t most = kTileBytes / job_.width();
  for (std::size_t at = 0; at < bytes; at += most) {
    const std::size_t now = std::min(most, bytes - at);
    reduce_at(job_, workspace_, tile, now);
    stream(to + at * job_.width(), tile, now * job_.width());
    for (std::size_t i = 0; i < from.size(); ++i) {
      from[i] = static_cast<const std::byte*>(from[i]) + now * job_.sources[i].width();
    }
  }
}

Status perform(const ComputeJob& job, std::size_t first, std::size_t bytes, Workspace& workspace) {
  if (bytes == 0) return {};
  return Performance::perform(job, first, bytes, workspace);
}

}  // namespace rdmacoll
