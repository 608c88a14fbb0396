#include "transport/rdma/slabs.h"

#include <algorithm>

#include "base/text.h"
#include "transport/rdma/gpu_registrations.h"

namespace rdmacoll::rdma {
namespace {

constexpr std::size_t kPageBytes = 4096;
// Larger slabs gain nothing, since a registration's fixed cost is small, as measured. Smaller slabs
// cut transfers into more pieces.
constexpr std::size_t kSlabBytesMin = std::size_t{256} << 10;
constexpr std::size_t kSlabBytesMax = std::size_t{16} << 20;
constexpr std::size_t kSlabs = 64;

std::size_t slab_bytes_of(std::size_t pool_bytes) {
  const std::size_t bytes = std::clamp(pool_bytes / kSlabs, kSlabBytesMin, kSlabBytesMax);
  return bytes / kPageBytes * kPageBytes;
}

}  // namespace

Status RegisteredMemory::open(std::span<Device* const> devices, std::byte* memory,
                              std::size_t bytes, Transport::Counters& counters) {
  RC_ASSERT(devices.size() <= kRailsMax);
  for (std::size_t rail = 0; rail < devices.size(); ++rail) {
    RC_RETURN_IF_ERROR(devices[rail]->register_memory(memory, bytes, registrations_[rail]));
    keys_[rail] = registrations_[rail]->keys();
    ++counters.registrations;
  }
  return {};
}

Slabs::Slabs(MemoryPool& pool, std::span<Device* const> devices, Transport::Counters& counters)
    : pool_(pool),
      devices_(devices),
      counters_(counters),
      slab_bytes_(slab_bytes_of(pool.size())),
      slabs_((pool.size() + slab_bytes_ - 1) / slab_bytes_) {
  pool_.keep_pages();
}

std::size_t Slabs::index(const std::byte* address) const {
  return static_cast<std::size_t>(address - pool_.base()) / slab_bytes_;
}

bool Slabs::pin(const Piece& memory) {
  if (memory.gpu != kHost) return gpus_ != nullptr && gpus_->hold(memory);
  RC_ASSERT(memory.bytes > 0 && !pool_.contains(memory.data, memory.bytes));
  Pinned& pinned = pinned_[{memory.data, memory.bytes}];
  if (pinned.pins == 0) {
    pinned.memory = memory;
    pinned.registered = std::make_unique<RegisteredMemory>();
    if (!pinned.registered->open(devices_, memory.data, memory.bytes, counters_).ok()) {
      pinned_.erase({memory.data, memory.bytes});
      return false;
    }
  }
  ++pinned.pins;
  return true;
}

void Slabs::unpin(const Piece& memory) {
  if (memory.gpu != kHost) return gpus_->release(memory);
  const auto found = pinned_.find({memory.data, memory.bytes});
  RC_ASSERT(found != pinned_.end(), cat(memory.bytes, " bytes that were not pinned"));
  if (--found->second.pins > 0) return;
  unpinned_.push_back(std::move(found->second));
  pinned_.erase(found);
}

bool Slabs::is_held(const Piece& piece) const { return gpus_ != nullptr && gpus_->is_held(piece); }

// Callers free memory of GPUs, and the host may then get its address. So only held memory counts.
bool Slabs::is_of_gpu(const std::byte* address) const {
  return gpus_ != nullptr && gpus_->is_held(address);
}

// Usually this is the nearest range that begins before the piece. Pinned ranges may overlap.
const Slabs::Pinned* Slabs::find(const Piece& piece) const {
  for (auto at = pinned_.upper_bound({piece.data, SIZE_MAX}); at != pinned_.begin();) {
    const Pinned& pinned = (--at)->second;
    if (pinned.holds(piece)) return &pinned;
  }
  return nullptr;
}

const Slabs::Pinned& Slabs::holder(const std::byte* address) const {
  const Piece piece{const_cast<std::byte*>(address), 1};
  if (const Pinned* pinned = find(piece)) return *pinned;
  const auto found = std::find_if(unpinned_.begin(), unpinned_.end(),
                                  [&](const Pinned& pinned) { return pinned.holds(piece); });
  RC_ASSERT(found != unpinned_.end(), "memory that no device knows");
  return *found;
}

std::size_t Slabs::reach(const std::byte* address) const {
  if (!pool_.contains(address, 1)) {
    if (is_of_gpu(address)) return gpus_->reach(address);
    const Piece& memory = holder(address).memory;
    return static_cast<std::size_t>(memory.data + memory.bytes - address);
  }
  const std::size_t end = std::min((index(address) + 1) * slab_bytes_, pool_.size());
  return end - static_cast<std::size_t>(address - pool_.base());
}

const RailKeys* Slabs::keys(const std::byte* address, Status& status) {
  if (!pool_.contains(address, 1)) {
    return is_of_gpu(address) ? &gpus_->keys(address) : &holder(address).registered->keys();
  }
  const std::size_t at = index(address);
  auto& slab = slabs_[at];
  if (slab == nullptr) {
    auto registered = std::make_unique<RegisteredMemory>();
    const std::size_t begin = at * slab_bytes_;
    status = registered->open(devices_, pool_.base() + begin,
                              std::min(slab_bytes_, pool_.size() - begin), counters_);
    if (!status.ok()) return nullptr;
    slab = std::move(registered);
  }
  return &slab->keys();
}

}  // namespace rdmacoll::rdma
