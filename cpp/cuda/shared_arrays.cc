#include "cuda/shared_arrays.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <utility>
#include <vector>

#include "base/text.h"
#include "memory/placement.h"

namespace rdmacoll::cuda {
namespace {

// A process opens whole blocks of this size, so no other memory of the program is in them.
constexpr uint64_t kIpcBlock = uint64_t{2} << 20;
constexpr uint64_t kAllocationBytesMin = uint64_t{32} << 20;
// A peer opens 1,024 allocations of a rank at most, and those of work memory are among them.
constexpr std::size_t kAllocationsMax = 512;
// The driver aligns its own allocations alike.
constexpr uint64_t kArrayAlignment = 512;

}  // namespace

std::shared_ptr<std::byte[]> SharedArrays::allocate(Gpu gpu, uint64_t bytes, DriverThread& thread) {
  const uint64_t wanted = round_up(std::max<uint64_t>(bytes, 1), kArrayAlignment);
  std::unique_lock lock(mutex_);
  if (std::shared_ptr<std::byte[]> memory = take(gpu, wanted)) return memory;
  if (refused_.contains(gpu)) return nullptr;
  if (allocations_.size() >= kAllocationsMax) {
    say_copied(gpu, cat(kAllocationsMax,
                        " allocations for arrays exist, and peers open no more. "
                        "Use fewer arrays, or free some."));
    return nullptr;
  }
  // The engine takes the lock, too, and must not wait for the driver.
  lock.unlock();
  const uint64_t size =
      round_up(std::max(wanted + kArrayAlignment, kAllocationBytesMin), kIpcBlock);
  const auto made = std::make_shared<NewSlab>(gpus_, gpu, size);
  const Status built = made->build();
  const bool is_built = built.ok();
  lock.lock();
  if (!is_built || allocations_.size() >= kAllocationsMax) {
    if (!is_built && made->description().begin != 0) {
      refused_.insert(gpu);
    } else if (!is_built) {
      say_copied(gpu, built.message());
    }
    (void)thread.post([made] {});  // the end of the task frees it
    return nullptr;
  }
  // The end stays free, so that no piece of a view reaches from one allocation into the next.
  allocations_.emplace(
      made->description().begin,
      Allocation{.gpu = gpu, .made = made, .free = FreeExtents(size - kArrayAlignment)});
  return take(gpu, wanted);
}

void SharedArrays::say_copied(Gpu gpu, const std::string& why) {
  if (!said_.insert(gpu).second) return;
  log_.warning(cat("Some arrays that rdmacoll makes on ", gpus_->facts(gpu).text(),
                   " are copied before peers read them: ", why));
}

std::shared_ptr<std::byte[]> SharedArrays::take(Gpu gpu, uint64_t bytes) {
  for (auto& [begin, allocation] : allocations_) {
    if (allocation.gpu != gpu) continue;
    const std::optional<std::size_t> offset = allocation.free.take(bytes, kArrayAlignment);
    if (!offset) continue;
    allocation.bytes_of_arrays += bytes;
    const auto give_back = [self = shared_from_this(), bytes](std::byte* data) {
      self->give_back(reinterpret_cast<uint64_t>(data), bytes);
    };
    return {reinterpret_cast<std::byte*>(begin + *offset), give_back};
  }
  return nullptr;
}

void SharedArrays::give_back(uint64_t address, uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  const auto found = find(address, bytes);
  RC_ASSERT(found != allocations_.end(), "freed memory is not of an allocation");
  found->second.free.give_back(address - found->first, bytes);
  found->second.bytes_of_arrays -= bytes;
}

SharedArrays::Allocations::iterator SharedArrays::find(uint64_t address, uint64_t bytes) {
  const auto after = allocations_.upper_bound(address);
  if (after == allocations_.begin()) return allocations_.end();
  const auto found = std::prev(after);
  const uint64_t size = found->second.made->description().bytes;
  const uint64_t offset = address - found->first;
  return offset <= size && bytes <= size - offset ? found : allocations_.end();
}

const GpuSlab* SharedArrays::allocation_of(const Piece& memory, bool for_peers) {
  const std::lock_guard lock(mutex_);
  const auto found = find(reinterpret_cast<uint64_t>(memory.data), memory.bytes);
  if (found == allocations_.end() || found->second.gpu != memory.gpu) return nullptr;
  found->second.is_shared |= for_peers;
  return &found->second.made->description();
}

bool SharedArrays::keeps(Gpu gpu) {
  const std::lock_guard lock(mutex_);
  return std::ranges::any_of(allocations_,
                             [gpu](const auto& one) { return one.second.is_idle(gpu); });
}

void SharedArrays::trim(Gpu gpu) {
  std::vector<std::shared_ptr<NewSlab>> idle;  // freed without the lock
  const std::lock_guard lock(mutex_);
  std::erase_if(allocations_, [&](const auto& one) {
    if (one.second.is_idle(gpu)) idle.push_back(one.second.made);
    return one.second.is_idle(gpu);
  });
}

}  // namespace rdmacoll::cuda
