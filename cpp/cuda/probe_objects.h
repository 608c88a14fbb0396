// Memory of both sides, and a stream, for a measurement on a GPU. The end releases them.
#pragma once

#include <cstddef>

#include "base/status.h"
#include "cuda/driver.h"

namespace rdmacoll::cuda {

struct ProbeObjects {
  const Driver& driver;
  StreamHandle stream = nullptr;
  void* host = nullptr;
  Address device = 0;

  explicit ProbeObjects(const Driver& opened) : driver(opened) {}
  ProbeObjects(const ProbeObjects&) = delete;
  ProbeObjects& operator=(const ProbeObjects&) = delete;
  ~ProbeObjects();

  // In the current context. `device_bytes`: 0 for no memory of the GPU.
  Status create(std::size_t host_bytes, std::size_t device_bytes);
};

}  // namespace rdmacoll::cuda
