// Memory of GPUs for results. Freed memory is kept for the next result of its size, so that the
// steady state allocates none.
#pragma once

#include <cstddef>
#include <memory>
#include <utility>

#include "cuda/free_list.h"
#include "cuda/gpus.h"

namespace rdmacoll::cuda {

// Any thread may call it.
class DevicePool : public std::enable_shared_from_this<DevicePool> {
 public:
  explicit DevicePool(std::shared_ptr<Gpus> gpus) : gpus_(std::move(gpus)) {}
  ~DevicePool();
  DevicePool(const DevicePool&) = delete;
  DevicePool& operator=(const DevicePool&) = delete;

  // The memory keeps this pool, and the context of its GPU, alive. It has an address even for no
  // bytes. A next owner gets it as soon as the last one lets go of it. Work of the last owner must
  // come before that of the next one, as on one stream.
  Status allocate(Gpu gpu, std::size_t bytes, std::shared_ptr<std::byte[]>& memory);
  // Whether memory is kept for next results.
  bool keeps(Gpu gpu);
  // Frees the memory that is kept for next results. The driver waits for kernels that run.
  void trim(Gpu gpu);

 private:
  using Class = std::pair<Gpu, std::size_t>;  // and bytes

  static std::size_t class_bytes(std::size_t bytes);
  Status take(Gpu gpu, std::size_t bytes, Address& address);

  const std::shared_ptr<Gpus> gpus_;
  FreeList<Class, Address> free_;
};

}  // namespace rdmacoll::cuda
