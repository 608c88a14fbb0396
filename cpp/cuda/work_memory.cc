#include "cuda/work_memory.h"

#include <algorithm>
#include <cstring>
#include <random>
#include <string>
#include <string_view>

#include "base/text.h"
#include "cuda/small_arrays.h"
#include "memory/placement.h"

namespace rdmacoll::cuda {
namespace {

// A slab takes this share of the GPU's memory, within these bounds. It is halved while the GPU has
// no room for it.
constexpr std::size_t kShareOfGpu = 64;
constexpr std::size_t kSlabBytesMin = std::size_t{16} << 20;
constexpr std::size_t kSlabBytesMax = std::size_t{1} << 30;
constexpr std::size_t kSlabUnit = std::size_t{2} << 20;
// Kernels read and write 16 bytes at once, and copies lines of 128.
constexpr uint64_t kAlignment = 256;

uint64_t number_of_process() {
  static const uint64_t kNumber = [] {
    std::random_device device;
    return (uint64_t{device()} << 32) | device();
  }();
  return kNumber;
}

}  // namespace

WorkMemory::~WorkMemory() {
  const Driver& driver = gpus_->driver();
  if (driver.is_forked_child()) return;
  while (!opened_.empty()) close(opened_.begin()->first);
  for (const auto& [gpu, slab] : slabs_) {
    if (!slab.status.ok() || readers_ > 0) continue;
    const ScopedContext scope(*gpus_, gpu);
    if (scope.status().ok()) driver.call.cuMemFree_v2(slab.description.begin);
  }
}

Status WorkMemory::find_slab(Gpu gpu, GpuSlab& slab) {
  const auto [entry, is_new] = slabs_.try_emplace(gpu);
  Slab& found = entry->second;
  if (is_new) {
    found.status = make(gpu, found);
    if (!found.status.ok()) {
      log_.warning(cat("Arrays on ", gpus_->facts(gpu).text(),
                       " go through host memory within a node: ", found.status.message()));
    }
  }
  slab = found.description;
  return found.status;
}

Status WorkMemory::make(Gpu gpu, Slab& slab) {
  const Driver& driver = gpus_->driver();
  const ScopedContext scope(*gpus_, gpu);
  RC_RETURN_IF_ERROR(scope.status());
  std::size_t bytes = round_up(
      std::clamp(gpus_->facts(gpu).bytes / kShareOfGpu, kSlabBytesMin, kSlabBytesMax), kSlabUnit);
  Address address = 0;
  Result result = driver.call.cuMemAlloc_v2(&address, bytes);
  while (result == kOutOfMemory && bytes / 2 >= kSlabBytesMin) {
    result = driver.call.cuMemAlloc_v2(&address, bytes /= 2);
  }
  RC_RETURN_IF_ERROR(driver.check(result, cat("cuMemAlloc of ", bytes_text(bytes))));
  slab.description.begin = address;
  slab.description.bytes = bytes;
  slab.free[0] = bytes;
  const Status status = describe(gpu, slab);
  if (!status.ok()) driver.call.cuMemFree_v2(address);
  return status;
}

// Sums need kernels, which a driver may not be able to compile.
Status WorkMemory::describe(Gpu gpu, Slab& slab) {
  const Driver& driver = gpus_->driver();
  GpuSlab& made = slab.description;
  StartCosts costs;
  RC_RETURN_IF_ERROR(measure(*gpus_, gpu, made.begin, costs));
  slab.bytes_min = bytes_summed_on_gpus(costs);
  MemoryHandle handle{};
  RC_RETURN_IF_ERROR(
      driver.check(driver.call.cuIpcGetMemHandle(&handle, made.begin), "cuIpcGetMemHandle"));
  std::memcpy(made.handle.data(), handle.bytes, sizeof handle.bytes);
  const std::string& uuid = gpus_->facts(gpu).uuid;
  std::memcpy(made.uuid.data(), uuid.data(), std::min(uuid.size(), made.uuid.size() - 1));
  made.process = number_of_process();
  return {};
}

std::byte* WorkMemory::allocate(Gpu gpu, uint64_t bytes) {
  const auto found = slabs_.find(gpu);
  if (found == slabs_.end() || !found->second.status.ok()) return nullptr;
  Slab& slab = found->second;
  const uint64_t wanted = round_up(std::max<uint64_t>(bytes, 1), kAlignment);
  for (auto& [begin, length] : slab.free) {
    if (length < wanted) continue;
    const uint64_t offset = begin, rest = length - wanted;
    slab.free.erase(offset);
    if (rest > 0) slab.free[offset + wanted] = rest;
    slab.live[offset] = wanted;
    return reinterpret_cast<std::byte*>(slab.description.begin + offset);
  }
  return nullptr;
}

void WorkMemory::free(Gpu gpu, std::byte* memory) {
  Slab& slab = slabs_.at(gpu);
  const auto found = slab.live.find(reinterpret_cast<uint64_t>(memory) - slab.description.begin);
  RC_ASSERT(found != slab.live.end(), "freed memory is not of this slab");
  auto [begin, length] = *found;
  slab.live.erase(found);
  const auto after = slab.free.find(begin + length);
  if (after != slab.free.end()) {
    length += after->second;
    slab.free.erase(after);
  }
  const auto next = slab.free.lower_bound(begin);
  if (next != slab.free.begin()) {
    const auto before = std::prev(next);
    if (before->first + before->second == begin) {
      before->second += length;
      return;
    }
  }
  slab.free[begin] = length;
}

// The slab's own GPU reads it fastest. Other GPUs need access to it as peers.
Status WorkMemory::open(const GpuSlab& slab, std::byte*& memory, Gpu& gpu) {
  RC_ASSERT(is_in_use());
  const std::string_view uuid(slab.uuid.data());
  gpu = 0;
  for (Gpu other = 0; other < gpus_->size(); ++other) {
    if (gpus_->facts(other).uuid == uuid) gpu = other;
  }
  Address address = slab.begin;
  const bool is_here = slab.process == number_of_process();
  RC_RETURN_IF_ERROR(is_here ? reach(slab, gpu) : open(slab, gpu, address));
  memory = reinterpret_cast<std::byte*>(address);
  if (!is_here) opened_[memory] = gpu;
  return {};
}

Status WorkMemory::open(const GpuSlab& slab, Gpu gpu, Address& address) {
  const Driver& driver = gpus_->driver();
  const ScopedContext scope(*gpus_, gpu);
  RC_RETURN_IF_ERROR(scope.status());
  MemoryHandle handle{};
  std::memcpy(handle.bytes, slab.handle.data(), sizeof handle.bytes);
  return driver.check(driver.call.cuIpcOpenMemHandle_v2(&address, handle, kIpcLazyPeerAccess),
                      cat("opening memory of the GPU ", slab.uuid.data(), " by CUDA IPC on ",
                          gpus_->facts(gpu).text()));
}

// For a rank in this process: its memory has the same address here.
Status WorkMemory::reach(const GpuSlab& slab, Gpu gpu) {
  if (gpus_->facts(gpu).uuid == slab.uuid.data()) return {};
  int ordinal = 0;
  Gpu owner = kHost;
  RC_RETURN_IF_ERROR(gpus_->find(slab.uuid.data(), ordinal));
  RC_RETURN_IF_ERROR(gpus_->use(ordinal, owner));
  const Driver& driver = gpus_->driver();
  const ScopedContext scope(*gpus_, gpu);
  RC_RETURN_IF_ERROR(scope.status());
  const Result result = driver.call.cuCtxEnablePeerAccess(gpus_->context(owner), 0);
  return driver.check(result == kPeerAccessAlreadyEnabled ? kSuccess : result,
                      cat("access of ", gpus_->facts(gpu).text(), " to ",
                          gpus_->facts(owner).text(), " by cuCtxEnablePeerAccess"));
}

void WorkMemory::close(std::byte* memory) {
  const auto found = opened_.find(memory);
  if (found == opened_.end()) return;  // a rank of this process
  const ScopedContext scope(*gpus_, found->second);
  if (scope.status().ok()) {
    gpus_->driver().call.cuIpcCloseMemHandle(reinterpret_cast<Address>(memory));
  }
  opened_.erase(found);
}

}  // namespace rdmacoll::cuda
