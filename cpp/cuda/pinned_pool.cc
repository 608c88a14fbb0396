#include "cuda/pinned_pool.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/text.h"

namespace rdmacoll::cuda {

PinnedPool::PinnedPool(const Gpus& gpus, MemoryPool& pool, Log log)
    : gpus_(gpus), pool_(pool), log_(log), slabs_((pool.size() + kSlabBytes - 1) / kSlabBytes) {}

PinnedPool::~PinnedPool() {
  if (gpu_ == kHost || gpus_.driver().is_forked_child()) return;
  const ScopedContext scope(gpus_, gpu_);
  if (!scope.status().ok()) return;
  for (std::size_t i = 0; i < slabs_.size(); ++i) {
    if (slabs_[i] != Slab::pinned) continue;
    gpus_.driver().call.cuMemHostUnregister(pool_.base() + i * kSlabBytes);
  }
}

std::size_t PinnedPool::slab_bytes(std::size_t index) const {
  return std::min(kSlabBytes, pool_.size() - index * kSlabBytes);
}

void PinnedPool::pin(const std::byte* memory, std::size_t bytes, Gpu gpu) {
  if (bytes == 0 || !pool_.contains(memory, bytes)) return;
  const auto first = static_cast<std::size_t>(memory - pool_.base());
  for (std::size_t i = first / kSlabBytes; i <= (first + bytes - 1) / kSlabBytes; ++i) {
    if (slabs_[i] == Slab::untouched) pin_slab(i, gpu);
  }
}

bool PinnedPool::find_offset(const std::byte* memory, std::size_t bytes, Gpu gpu,
                             std::ptrdiff_t& offset) {
  if (bytes == 0 || !pool_.contains(memory, bytes)) return false;
  pin(memory, bytes, gpu);
  const auto first = static_cast<std::size_t>(memory - pool_.base());
  const auto found = find_offset(first / kSlabBytes, gpu);
  for (std::size_t i = first / kSlabBytes; i <= (first + bytes - 1) / kSlabBytes; ++i) {
    if (!found || find_offset(i, gpu) != found) return false;
  }
  offset = *found;
  return true;
}

std::optional<std::ptrdiff_t> PinnedPool::find_offset(std::size_t index, Gpu gpu) {
  if (slabs_[index] != Slab::pinned) return {};
  const auto [entry, is_new] = offsets_.try_emplace({gpu, index});
  if (!is_new) return entry->second;
  std::byte* const memory = pool_.base() + index * kSlabBytes;
  Address address = 0;
  const Result result = gpus_.driver().call.cuMemHostGetDevicePointer_v2(&address, memory, 0);
  if (result == kSuccess) {
    entry->second = static_cast<std::ptrdiff_t>(address - reinterpret_cast<Address>(memory));
  } else if (!std::exchange(has_logged_unreached_, true)) {
    const std::string what =
        cat("finding pinned memory of the host from ", gpus_.facts(gpu).text());
    log_.warning(cat(gpus_.driver().error(result, what).message(), kSlowerCopies));
  }
  return entry->second;
}

void PinnedPool::pin_slab(std::size_t index, Gpu gpu) {
  // Otherwise a GPU would go on with pages that are no longer at these addresses.
  if (gpu_ == kHost) pool_.keep_pages();
  gpu_ = gpu_ == kHost ? gpu : gpu_;
  const ScopedContext scope(gpus_, gpu_);
  const Driver& driver = gpus_.driver();
  const std::size_t bytes = slab_bytes(index);
  Result result = kInvalidContext;
  if (scope.status().ok()) {
    result = driver.call.cuMemHostRegister_v2(pool_.base() + index * kSlabBytes, bytes,
                                              kHostRegisterPortable | kHostRegisterMapped);
  }
  slabs_[index] = result == kSuccess                   ? Slab::pinned
                  : result == kMemoryAlreadyRegistered ? Slab::of_others
                                                       : Slab::unpinned;
  if (slabs_[index] == Slab::pinned) pinned_bytes_ += bytes;
  if (slabs_[index] != Slab::unpinned || has_logged_) return;
  has_logged_ = true;
  log_.warning(cat(
      driver.error(result, cat("pinning ", bytes_text(bytes), " for ", gpus_.facts(gpu_).text()))
          .message(),
      " Copies between host and GPU are slower without."));
}

}  // namespace rdmacoll::cuda
