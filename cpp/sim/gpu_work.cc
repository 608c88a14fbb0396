#include "sim/gpu_work.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/small_range.h"
#include "base/text.h"

namespace rdmacoll {
namespace {

constexpr uint64_t kLateMax = 2 * kMillisecond;  // a task of the thread ends by then
constexpr std::size_t kSlabAlignment = 64;
constexpr std::size_t kSlabsMax = 3;
constexpr uint64_t kArraysBytes = 256 << 10;

}  // namespace

SimGpuWork::SimGpuWork(const SimIpc& ipc, SimNetwork& network, SimGpus& gpus,
                       std::function<void()> wake)
    : ipc_(ipc), network_(network), gpus_(gpus), wake_(std::move(wake)) {}

// The handle names the bytes, which a peer of this process reaches.
SimGpuWork::Slab::Slab(SimGpus& gpus, Gpu gpu, uint64_t bytes)
    : memory(gpus.allocate(gpu, bytes)), free(bytes) {
  RC_ASSERT(memory != nullptr, "a simulated GPU is full");
  const std::byte* const reached = gpus.bytes_of(gpu, memory.get(), bytes);
  std::memcpy(description.handle.data(), &reached, sizeof reached);
  description.begin = reinterpret_cast<uint64_t>(memory.get());
  description.bytes = bytes;
}

void SimGpuWork::later(std::function<void()> work) {
  const auto due =
      network_.clock().now() + static_cast<Nanoseconds>(network_.random()() % kLateMax);
  network_.at(due, [this, is_alive = is_alive_, work = std::move(work)] {
    if (!*is_alive) return;
    work();
    ++version_;
    wake_();
  });
}

int SimGpuWork::prepare(Gpu gpu, uint64_t bytes) {
  OfGpu& memory = memory_[gpu];
  const std::size_t slabs = memory.slabs.size();
  const bool is_enough = slabs > 0 && (bytes <= slabs * ipc_.slab_bytes || slabs >= kSlabsMax);
  if (!is_enough && !std::exchange(memory.is_being_made, true)) {
    later([this, gpu, &memory] {
      memory.is_being_made = false;
      memory.slabs.push_back(std::make_unique<Slab>(gpus_, gpu, ipc_.slab_bytes));
      ready_ = gpu;
    });
  }
  return static_cast<int>(slabs);
}

const GpuSlab& SimGpuWork::slab(Gpu gpu, int number) const {
  return memory_.at(gpu).slabs.at(static_cast<std::size_t>(number))->description;
}

void SimGpuWork::enable(Gpu gpu) {
  for (const auto& slab : memory_.at(gpu).slabs) slab->is_enabled = true;
}

std::byte* SimGpuWork::take(Slab& slab, uint64_t bytes) {
  const auto offset = slab.free.take(std::max<uint64_t>(bytes, 1), kSlabAlignment);
  if (!offset) return nullptr;
  std::byte* const memory = slab.memory.get() + *offset;
  slab.live[memory] = std::max<uint64_t>(bytes, 1);
  return memory;
}

std::byte* SimGpuWork::allocate(Gpu gpu, uint64_t bytes) {
  for (const auto& slab : memory_.at(gpu).slabs) {
    std::byte* const memory = slab->is_enabled ? take(*slab, bytes) : nullptr;
    if (memory == nullptr) continue;
    ++allocations_;
    return memory;
  }
  return nullptr;
}

// Overwrites the memory, so that a peer that still reads it has a wrong result.
void SimGpuWork::free(Gpu gpu, std::byte* memory) {
  for (const auto& slab : memory_.at(gpu).slabs) {
    const auto found = slab->live.find(memory);
    if (found == slab->live.end()) continue;
    std::memset(gpus_.bytes_of(gpu, memory, found->second), 0xcc, found->second);
    slab->free.give_back(static_cast<std::size_t>(memory - slab->memory.get()), found->second);
    slab->live.erase(found);
    return;
  }
  RC_ASSERT(false, "freed memory is not of a slab");
}

Status SimGpuWork::open(const GpuSlab& slab, std::byte*& memory, Gpu& gpu) {
  if (!ready_) return Status::busy();
  const auto [opening, is_new] = opening_.try_emplace(slab.begin);
  if (is_new) {
    later([this, begin = slab.begin] {
      const auto found = opening_.find(begin);
      if (found == opening_.end()) return;
      found->second = {.is_done = true, .is_refused = network_.chance(ipc_.refused)};
    });
  }
  if (!opening->second.is_done) return Status::busy();
  const bool is_refused = opening->second.is_refused;
  opening_.erase(opening);
  if (is_refused) return {Code::failed, "simulated GPUs have no access to each other"};
  std::byte* reached = nullptr;
  std::memcpy(&reached, slab.handle.data(), sizeof reached);
  memory = reinterpret_cast<std::byte*>(slab.begin);
  gpu = *ready_;
  gpus_.map(memory, slab.bytes, reached);
  return {};
}

void SimGpuWork::close(std::byte* memory) { gpus_.unmap(memory); }

const GpuSlab* SimGpuWork::allocation_of(const Piece& memory, bool) {
  const auto found = memory_.find(memory.gpu);
  if (found == memory_.end() || found->second.arrays == nullptr) return nullptr;
  const GpuSlab& arrays = found->second.arrays->description;
  const uint64_t offset = reinterpret_cast<uint64_t>(memory.data) - arrays.begin;
  return offset < arrays.bytes && memory.bytes <= arrays.bytes - offset ? &arrays : nullptr;
}

std::shared_ptr<std::byte[]> SimGpuWork::allocate_array(Gpu gpu, uint64_t bytes) {
  if (!ipc_.shares_arrays) return nullptr;
  std::shared_ptr<Slab>& arrays = memory_[gpu].arrays;
  if (arrays == nullptr) arrays = std::make_shared<Slab>(gpus_, gpu, kArraysBytes);
  std::byte* const memory = take(*arrays, bytes);
  if (memory == nullptr) return nullptr;
  return {memory, [arrays](std::byte* freed) {
            const auto found = arrays->live.find(freed);
            arrays->free.give_back(static_cast<std::size_t>(freed - arrays->memory.get()),
                                   found->second);
            arrays->live.erase(found);
          }};
}

void SimGpuWork::lose() {
  const auto overwrite = [this](Gpu gpu, const Slab& slab) {
    const uint64_t bytes = slab.description.bytes;
    std::memset(gpus_.bytes_of(gpu, slab.memory.get(), bytes), 0xbb, bytes);
  };
  for (const auto& [gpu, memory] : memory_) {
    for (const auto& slab : memory.slabs) overwrite(gpu, *slab);
    if (memory.arrays != nullptr) overwrite(gpu, *memory.arrays);
  }
}

}  // namespace rdmacoll
