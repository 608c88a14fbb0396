#include "sim/gpu.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "base/text.h"
#include "memory/placement.h"
#include "memory/shared_memory.h"

namespace rdmacoll {
namespace {

constexpr std::size_t kBytes = std::size_t{64} << 20;  // a GPU has this much, sparse
constexpr std::size_t kAlignment = 256;                // as drivers align allocations

}  // namespace

struct SimGpus::Arena {
  Mapping addresses;  // without access
  Mapping bytes;      // the same memory
  struct Allocation {
    std::size_t bytes = 0;
    uint64_t buffer_id = 0;
  };
  std::map<std::byte*, Allocation> allocations;
  uint64_t next_buffer_id = 1;

  Arena() {
    Fd memory;
    Status status = create_shared("rdmacoll-sim-gpu", kBytes, memory);
    if (status.ok()) status = map_shared(memory.get(), kBytes, addresses);
    if (status.ok()) status = map_shared(memory.get(), kBytes, bytes);
    RC_ASSERT(status.ok(), status.message());
    RC_ASSERT(::mprotect(addresses.data(), kBytes, PROT_NONE) == 0);
  }

  // The first gap that is wide enough. Null: there is none.
  std::byte* allocate(std::size_t bytes) {
    std::byte* at = addresses.data();
    for (const auto& [begin, allocation] : allocations) {
      if (static_cast<std::size_t>(begin - at) >= round_up(bytes, kAlignment)) break;
      at = begin + round_up(allocation.bytes, kAlignment);
    }
    if (round_up(bytes, kAlignment) > static_cast<std::size_t>(addresses.data() + kBytes - at)) {
      return nullptr;
    }
    allocations[at] = {bytes, next_buffer_id++};
    return at;
  }
};

std::shared_ptr<std::byte[]> SimGpus::allocate(Gpu gpu, uint64_t bytes) {
  std::shared_ptr<Arena>& arena = arenas_[static_cast<std::size_t>(gpu)];
  if (arena == nullptr) arena = std::make_shared<Arena>();
  std::byte* const memory = bytes >= kBytes ? nullptr : arena->allocate(bytes + 1);
  if (memory == nullptr) return nullptr;
  return {memory, [arena](std::byte* freed) { arena->allocations.erase(freed); }};
}

bool SimGpus::find(const std::byte* address, GpuAllocation& allocation) const {
  for (std::size_t number = 0; number < arenas_.size(); ++number) {
    if (arenas_[number] == nullptr) continue;
    const auto& all = arenas_[number]->allocations;
    auto at = all.upper_bound(const_cast<std::byte*>(address));
    if (at == all.begin() || address >= (--at)->first + at->second.bytes) continue;
    allocation = {.begin = at->first,
                  .bytes = at->second.bytes,
                  .buffer_id = at->second.buffer_id,
                  .gpu = static_cast<Gpu>(number),
                  .is_capable = true};
    return true;
  }
  return false;
}

void SimGpus::map(const std::byte* address, std::size_t size, std::byte* bytes) {
  mapped_[address] = {size, bytes};
}

std::byte* SimGpus::bytes_of(Gpu gpu, const void* address, std::size_t bytes) const {
  auto after = mapped_.upper_bound(static_cast<const std::byte*>(address));
  if (after != mapped_.begin()) {
    const auto& [begin, mapped] = *--after;
    const auto at = static_cast<std::size_t>(static_cast<const std::byte*>(address) - begin);
    if (at < mapped.size && bytes <= mapped.size - at) return mapped.bytes + at;
  }
  const auto number = static_cast<std::size_t>(gpu);
  RC_ASSERT(number < arenas_.size() && arenas_[number] != nullptr, cat("no GPU ", gpu));
  const Arena& arena = *arenas_[number];
  const auto offset =
      reinterpret_cast<uintptr_t>(address) - reinterpret_cast<uintptr_t>(arena.addresses.data());
  RC_ASSERT(offset < kBytes && bytes <= kBytes - offset, cat("memory that GPU ", gpu, " has not"));
  return arena.bytes.data() + offset;
}

std::byte* SimGpus::taken(Gpu gpu, uint64_t bytes) {
  std::shared_ptr<std::byte[]> memory = arrays_ ? arrays_(gpu, bytes) : nullptr;
  if (memory == nullptr) memory = allocate(gpu, bytes);
  RC_ASSERT(memory != nullptr, "a simulated GPU is full");
  return (taken_[memory.get()] = std::move(memory)).get();
}

void SimGpus::free(const TensorRef& tensor) {
  taken_.erase(tensor.input);
  taken_.erase(tensor.output);
}

std::function<void()> SimGpus::take(Request& request, Gpu gpu) {
  struct Upload {
    std::byte* into;
    const std::byte* from;
    std::size_t bytes;
  };
  std::vector<Upload> uploads;
  for (TensorRef& tensor : request.tensors) {
    const std::size_t bytes = tensor.bytes(request.dtype);
    const bool is_in_place = tensor.output == tensor.input;
    std::byte* const input = taken(gpu, bytes);
    uploads.push_back({bytes_of(gpu, input, bytes), tensor.input, bytes});
    std::memset(uploads.back().into, 0xdd, bytes);
    tensor.input = input;
    if (tensor.output != nullptr) tensor.output = is_in_place ? input : taken(gpu, bytes);
    tensor.gpu = gpu;
  }
  request.result_memory = [this, gpu](uint64_t bytes) { return allocate(gpu, bytes); };
  return [uploads = std::move(uploads)] {
    for (const Upload& one : uploads) {
      if (one.bytes > 0) std::memcpy(one.into, one.from, one.bytes);
    }
  };
}

void SimGpus::overwrite(const TensorRef& tensor, Dtype dtype) const {
  const std::size_t bytes = tensor.bytes(dtype);
  for (const std::byte* memory : {tensor.input, static_cast<const std::byte*>(tensor.output)}) {
    if (memory != nullptr) std::memset(bytes_of(tensor.gpu, memory, bytes), 0xee, bytes);
  }
}

ReachedJob::ReachedJob(const ComputeJob& job, const SimGpus& gpus)
    : job_(job), operands_(job.sources.begin(), job.sources.end()) {
  for (const Piece& piece : job.to) to_.push_back(gpus.reachable(piece));
  for (const Operand& operand : operands_) {
    auto& pieces = pieces_.emplace_back();
    for (const Piece& piece : operand.pieces) pieces.push_back(gpus.reachable(piece));
    auto& remote = remote_.emplace_back(operand.remote.begin(), operand.remote.end());
    for (RemotePiece& piece : remote) {
      if (piece.gpu != kHost) piece.mapped = gpus.bytes_of(piece.gpu, piece.mapped, piece.bytes);
    }
  }
  for (std::size_t i = 0; i < operands_.size(); ++i) {
    operands_[i].pieces = pieces_[i];
    operands_[i].remote = remote_[i];
  }
  job_.to = to_;
  job_.sources = operands_;
}

Status SimStreamOrder::reached(bool& is_reached) {
  is_reached = clock_.now() >= due_;
  if (is_reached && work_) std::exchange(work_, nullptr)();
  return {};
}

}  // namespace rdmacoll
