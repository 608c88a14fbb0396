#include "transport/rdma/slabs.h"

#include <algorithm>

#include "base/text.h"

namespace rdmacoll::rdma {
namespace {

constexpr std::size_t kPageBytes = 4096;
// A registration costs some 16 us and 0.06 ns a byte, so larger slabs gain nothing; smaller ones
// cut transfers in pieces.
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

std::size_t Slabs::reach(const std::byte* address) const {
  const std::size_t end = std::min((index(address) + 1) * slab_bytes_, pool_.size());
  return end - static_cast<std::size_t>(address - pool_.base());
}

const RailKeys* Slabs::keys(const std::byte* address, Status& status) {
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
