#include "cuda/bar_writes.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "base/text.h"
#include "compute/job.h"
#include "cuda/job_pieces.h"
#include "cuda/probe_objects.h"

namespace rdmacoll::cuda {
namespace {

constexpr std::array<std::size_t, 3> kProbedBytes{64, 512, BarWrites::kBytesMax};
constexpr int kProbeRuns = 6;

Address gpu_address(const std::byte* memory) { return reinterpret_cast<Address>(memory); }

// The allocation that holds an address.
struct MappableRange {
  Address begin = 0;
  std::size_t bytes = 0;
  uint64_t buffer_id = 0;
  bool is_mappable = false;
};

// GDRCopy maps memory of cuMemAlloc alone, which is the memory that CUDA IPC shares.
MappableRange mappable_range(const Driver& driver, Address address) {
  MappableRange range;
  unsigned type = 0, is_managed = 0, is_plain = 0, is_capable = 0;
  unsigned long long id = 0;
  const PointerAttribute which[] = {PointerAttribute::memory_type,
                                    PointerAttribute::is_managed,
                                    PointerAttribute::buffer_id,
                                    PointerAttribute::range_start,
                                    PointerAttribute::range_size,
                                    PointerAttribute::is_legacy_cuda_ipc_capable,
                                    PointerAttribute::is_gpu_direct_rdma_capable};
  void* values[] = {&type, &is_managed, &id, &range.begin, &range.bytes, &is_plain, &is_capable};
  const Result result = driver.call.cuPointerGetAttributes(
      std::size(values), reinterpret_cast<const int*>(which), values, address);
  const bool is_device = static_cast<MemoryType>(type) == MemoryType::device && is_managed == 0;
  range.buffer_id = id;
  range.is_mappable = result == kSuccess && is_device && is_plain != 0 && is_capable != 0;
  return range;
}

// Without SYNC_MEMOPS, a copy that seems to have ended could overwrite bytes that are written
// later.
Status map_for_writes(const Driver& driver, Gdrcopy& library, Address address, std::size_t bytes,
                      Gdrcopy::Mapping& mapping) {
  const unsigned on = 1;
  const auto which = static_cast<int>(PointerAttribute::sync_memops);
  RC_RETURN_IF_ERROR(driver.check(driver.call.cuPointerSetAttribute(&on, which, address),
                                  "cuPointerSetAttribute of SYNC_MEMOPS"));
  return library.map(address, bytes, mapping);
}

uint64_t buffer_id_of(const Driver& driver, Address address) {
  unsigned long long id = 0;
  const auto which = static_cast<int>(PointerAttribute::buffer_id);
  return driver.call.cuPointerGetAttribute(&id, which, address) == kSuccess ? id : 0;
}

}  // namespace

std::size_t bytes_written_at_most(std::span<const WriteTimes> times) {
  std::size_t most = 0;
  for (const WriteTimes& one : times) {
    if (one.write <= 0 || one.write >= one.copy) break;
    most = one.bytes;
  }
  return most;
}

// Outlives the object, for the tasks of the thread.
struct BarWrites::Shared {
  const std::shared_ptr<Gpus> gpus;
  const std::string name;  // the library
  const Log log;
  std::shared_ptr<Gdrcopy> library{};  // set before the first of bytes_max
  std::array<std::atomic<std::size_t>, Gpus::kGpusMax> bytes_max{};
  std::atomic<bool> has_begun{false}, is_refusal_said{false};

  void probe(Gpu gpu, const Clock& clock, Nanoseconds limit);
  bool open();
  Status measure(Gpu gpu, const Clock& clock, Nanoseconds limit, std::vector<WriteTimes>& times);
  void say_refused(const std::string& reason) {
    if (is_refusal_said.exchange(true)) return;
    log.info(cat("small results are copied to some memory of GPUs, not written: ", reason));
  }
};

// Some memory that is mapped, or cannot be.
struct BarWrites::Entry {
  enum class State : uint8_t { mapping, ready, refused };
  const std::shared_ptr<Shared> shared;
  const Address begin, end;  // the pages, cut to one allocation
  const uint64_t buffer_id;
  uint64_t last_turn;
  Gdrcopy::Mapping mapping{};
  std::atomic<State> state{State::mapping};

  Entry(std::shared_ptr<Shared> owner, Address first, Address last, uint64_t id, uint64_t turn)
      : shared(std::move(owner)), begin(first), end(last), buffer_id(id), last_turn(turn) {}
  ~Entry() {
    if (mapping.memory != nullptr) shared->library->unmap(mapping);
  }
  bool holds(Address address, std::size_t bytes) const {
    return address >= begin && address + bytes <= end;
  }
  void map(Gpu gpu);
};

namespace {

// The mapping of the measurement.
struct ProbeMapping {
  Gdrcopy& library;
  Gdrcopy::Mapping mapping{};

  explicit ProbeMapping(Gdrcopy& opened) : library(opened) {}
  ProbeMapping(const ProbeMapping&) = delete;
  ProbeMapping& operator=(const ProbeMapping&) = delete;
  ~ProbeMapping() {
    if (mapping.memory != nullptr) library.unmap(mapping);
  }
};

}  // namespace

bool BarWrites::Shared::open() {
  if (name.empty()) return false;
  if (!has_begun.exchange(true)) {
    Gdrcopy::Problem problem;
    library = Gdrcopy::open(name, problem);
    // Most machines have no GDRCopy, and need none.
    if (library == nullptr && problem.is_installed)
      log.info(cat("GDRCopy is not used: ", problem.text, "."));
  }
  return library != nullptr;
}

Status BarWrites::Shared::measure(Gpu gpu, const Clock& clock, Nanoseconds limit,
                                  std::vector<WriteTimes>& times) {
  const Driver& driver = gpus->driver();
  const Functions& call = driver.call;
  const ScopedContext scope(*gpus, gpu);
  RC_RETURN_IF_ERROR(scope.status());
  ProbeObjects objects(driver);
  RC_RETURN_IF_ERROR(objects.create(kBytesMax, Gdrcopy::kPageBytes));
  ProbeMapping mapped(*library);  // ends before the memory does
  RC_RETURN_IF_ERROR(map_for_writes(driver, *library, objects.device, kBytesMax, mapped.mapping));
  std::array<std::byte, kBytesMax> data;
  for (std::size_t i = 0; i < data.size(); ++i) data[i] = static_cast<std::byte>(i * 7 + i / 256);
  const auto copy = [&](std::size_t bytes) -> Status {
    Result result = call.cuMemcpyHtoDAsync_v2(objects.device, objects.host, bytes, objects.stream);
    if (result == kSuccess) result = call.cuStreamSynchronize(objects.stream);
    return driver.check(result, "measuring small copies");
  };
  const auto write = [&](std::size_t bytes) -> Status {
    uint64_t last = 0;
    RC_RETURN_IF_ERROR(library->write(mapped.mapping, objects.device, data.data(), bytes));
    return library->read(mapped.mapping, &last, objects.device + bytes - sizeof last, sizeof last);
  };
  for (const std::size_t bytes : kProbedBytes) {
    constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
    WriteTimes one{bytes, kMax, kMax};
    for (int run = 0; run == 0 || (run < kProbeRuns && clock.now() < limit); ++run) {
      const Nanoseconds begin = clock.now();
      RC_RETURN_IF_ERROR(copy(bytes));
      const Nanoseconds middle = clock.now();
      RC_RETURN_IF_ERROR(write(bytes));
      one.copy = std::min<int64_t>(one.copy, middle - begin);
      one.write = std::min<int64_t>(one.write, clock.now() - middle);
    }
    times.push_back(one);
  }
  // The GPU must have what was written.
  Result result =
      call.cuMemcpyDtoHAsync_v2(objects.host, objects.device, kBytesMax, objects.stream);
  if (result == kSuccess) result = call.cuStreamSynchronize(objects.stream);
  RC_RETURN_IF_ERROR(driver.check(result, "a look at the writes"));
  if (std::memcmp(objects.host, data.data(), kBytesMax) == 0) return {};
  return {Code::failed, "the GPU does not have the bytes that were written through GDRCopy."};
}

void BarWrites::Shared::probe(Gpu gpu, const Clock& clock, Nanoseconds limit) {
  if (!open()) return;
  std::vector<WriteTimes> times;
  const std::string title = gpus->facts(gpu).text();
  const Status status = measure(gpu, clock, limit, times);
  if (!status.ok()) {
    log.warning(cat("GDRCopy is not used for ", title, ": ", status.message()));
    return;
  }
  const std::size_t most = bytes_written_at_most(times);
  log.info(most == 0 ? cat("GDRCopy is not used for ", title, ", since no write was faster there.")
                     : cat("results of up to ", bytes_text(most), " are written to ", title,
                           " through GDRCopy ", library->version(), "."));
  bytes_max[static_cast<std::size_t>(gpu)].store(most, std::memory_order_release);
}

// The thread of the driver calls it.
void BarWrites::Entry::map(Gpu gpu) {
  const Driver& driver = shared->gpus->driver();
  const ScopedContext scope(*shared->gpus, gpu);
  Status status = scope.status();
  if (status.ok()) status = map_for_writes(driver, *shared->library, begin, end - begin, mapping);
  // Memory that was freed meanwhile may be that of another one by now.
  if (status.ok() && buffer_id_of(driver, begin) != buffer_id) {
    status = {Code::failed, "the memory was freed."};
  }
  if (!status.ok()) shared->say_refused(status.message());
  state.store(status.ok() ? State::ready : State::refused, std::memory_order_release);
}

BarWrites::BarWrites(std::shared_ptr<Gpus> gpus, DriverThread& thread, const std::string& library,
                     Log log)
    : shared_(new Shared{.gpus = std::move(gpus), .name = library, .log = log}), thread_(thread) {}

BarWrites::~BarWrites() = default;

std::function<void(Gpu, const Clock&, Nanoseconds)> BarWrites::probe() const {
  return [shared = shared_](Gpu gpu, const Clock& clock, Nanoseconds limit) {
    shared->probe(gpu, clock, limit);
  };
}

bool BarWrites::write(const ComputeJob& job, std::size_t bytes) {
  if (bytes > kBytesMax || job.to.size() > kPiecesMax || job.shown || !is_copy(job)) return false;
  const std::span<const Piece> from = job.sources.front().pieces;
  if (!are_on(kHost, from) || !find_all(job.to, bytes)) return false;
  Side source(from);
  for (const Target& target : targets_) {
    for (std::size_t done = 0; done < target.piece.bytes;) {
      const std::size_t run = std::min(target.piece.bytes - done, source.run());
      const Address to = gpu_address(target.piece.data) + done;
      const Status status = shared_->library->write(target.entry->mapping, to, source.data(), run);
      if (!status.ok()) {
        shared_->say_refused(status.message());
        target.entry->state.store(Entry::State::refused);
        return false;
      }
      source.skip(run);
      done += run;
    }
  }
  return true;
}

// Begins to map memory that is not mapped.
bool BarWrites::find_all(std::span<const Piece> to, std::size_t bytes) {
  const bool is_worth_it = std::all_of(to.begin(), to.end(), [&](const Piece& piece) {
    if (piece.gpu == kHost) return false;
    const auto& most = shared_->bytes_max[static_cast<std::size_t>(piece.gpu)];
    return bytes <= most.load(std::memory_order_acquire);
  });
  if (!is_worth_it) return false;
  ++turn_;
  targets_.clear();
  for (const Piece& piece : to) {
    if (piece.bytes == 0) continue;
    Entry* const entry = find(piece);
    if (entry == nullptr) return false;
    targets_.push_back({piece, entry});
  }
  return true;
}

BarWrites::Entry* BarWrites::find(const Piece& piece) {
  const Address address = gpu_address(piece.data);
  const auto found = std::find_if(entries_.begin(), entries_.end(), [&](const auto& entry) {
    return entry->holds(address, piece.bytes);
  });
  if (found == entries_.end()) {
    map(piece);
    return nullptr;
  }
  Entry& entry = **found;
  if (buffer_id_of(shared_->gpus->driver(), address) != entry.buffer_id) {
    drop(static_cast<std::size_t>(found - entries_.begin()));
    map(piece);
    return nullptr;
  }
  entry.last_turn = turn_;
  return entry.state.load(std::memory_order_acquire) == Entry::State::ready ? &entry : nullptr;
}

// The thread maps the pages of the piece. An array that is not mapped is still copied, so mappings
// are not taken from arrays in use: a loop over too many arrays would map all of them in each turn.
void BarWrites::map(const Piece& piece) {
  if (entries_.size() == kMappingsMax) {
    const auto oldest =
        std::min_element(entries_.begin(), entries_.end(),
                         [](const auto& a, const auto& b) { return a->last_turn < b->last_turn; });
    if (turn_ - (*oldest)->last_turn < kTurnsKept) return;
    drop(static_cast<std::size_t>(oldest - entries_.begin()));
  }
  drop_freed();
  const Address address = gpu_address(piece.data);
  const MappableRange range = mappable_range(shared_->gpus->driver(), address);
  constexpr Address kPage = Gdrcopy::kPageBytes;
  const Address end = address + piece.bytes, end_of_range = range.begin + range.bytes;
  if (!range.is_mappable || end > end_of_range) {
    entries_.push_back(std::make_shared<Entry>(shared_, address, end, range.buffer_id, turn_));
    entries_.back()->state = Entry::State::refused;
    shared_->say_refused(
        "GDRCopy maps memory of cuMemAlloc that allows GPUDirect RDMA, and no other.");
    return;
  }
  auto entry = std::make_shared<Entry>(shared_, std::max(range.begin, address / kPage * kPage),
                                       std::min(end_of_range, (end + kPage - 1) / kPage * kPage),
                                       range.buffer_id, turn_);
  const Status posted = thread_.post([entry, gpu = piece.gpu] { entry->map(gpu); });
  if (!posted.ok()) return shared_->say_refused(posted.message());
  entries_.push_back(std::move(entry));
}

// The thread unmaps it.
void BarWrites::drop(std::size_t index) {
  std::shared_ptr<Entry> dropped = std::move(entries_[index]);
  entries_.erase(entries_.begin() + static_cast<std::ptrdiff_t>(index));
  (void)thread_.post([dropped = std::move(dropped)] {});
}

// A mapping may keep freed memory from others.
void BarWrites::drop_freed() {
  const Driver& driver = shared_->gpus->driver();
  for (std::size_t i = entries_.size(); i > 0; --i) {
    if (buffer_id_of(driver, entries_[i - 1]->begin) != entries_[i - 1]->buffer_id) drop(i - 1);
  }
}

}  // namespace rdmacoll::cuda
