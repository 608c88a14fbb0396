#include "cuda/device_pool.h"

#include <algorithm>
#include <bit>

#include "base/text.h"
#include "memory/placement.h"

namespace rdmacoll::cuda {
namespace {

constexpr std::size_t kBytesMin = 512;
constexpr std::size_t kClassesOfAPower = 8;  // so at most an eighth of a block is left over

}  // namespace

DevicePool::~DevicePool() {
  if (gpus_->driver().is_forked_child()) return;
  for (int gpu = 0; gpu < gpus_->size(); ++gpu) {
    trim(static_cast<Gpu>(gpu));
  }
}

std::size_t DevicePool::class_bytes(std::size_t bytes) {
  return round_up(std::max<std::size_t>(bytes, 1),
                  std::max(kBytesMin, std::bit_floor(bytes) / kClassesOfAPower));
}

Status DevicePool::allocate(Gpu gpu, std::size_t bytes, std::shared_ptr<std::byte[]>& memory) {
  RC_RETURN_IF_ERROR(gpus_->driver().usable());
  const Class of{gpu, class_bytes(bytes)};
  Address address = 0;
  RC_RETURN_IF_ERROR(take(gpu, of.second, address));
  const auto give_back = [pool = shared_from_this(), of](std::byte* data) {
    pool->free_.give_back(of, reinterpret_cast<Address>(data));
  };
  memory = std::shared_ptr<std::byte[]>(reinterpret_cast<std::byte*>(address), give_back);
  return {};
}

Status DevicePool::take(Gpu gpu, std::size_t bytes, Address& address) {
  if (const auto free = free_.take({gpu, bytes})) {
    address = *free;
    return {};
  }
  const Driver& driver = gpus_->driver();
  const ScopedContext scope(*gpus_, gpu);
  RC_RETURN_IF_ERROR(scope.status());
  return driver.check(driver.call.cuMemAlloc_v2(&address, bytes),
                      cat("cuMemAlloc of ", bytes_text(bytes), " on ", gpus_->facts(gpu).text()));
}

bool DevicePool::keeps(Gpu gpu) {
  return free_.has([gpu](const Class& of) { return of.first == gpu; });
}

void DevicePool::trim(Gpu gpu) {
  const ScopedContext scope(*gpus_, gpu);
  if (!scope.status().ok()) return;
  for (const auto& [of, blocks] : free_.take_all([gpu](auto& of) { return of.first == gpu; })) {
    for (const Address address : blocks) gpus_->driver().call.cuMemFree_v2(address);
  }
}

}  // namespace rdmacoll::cuda
