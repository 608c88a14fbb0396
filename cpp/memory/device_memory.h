// Memory of GPUs, and streams of GPU work, as the callers' requests name them. The interface hides
// the GPU's driver from the rooms that need no GPU. Any thread may call it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "base/status.h"
#include "memory/memory_kind.h"
#include "memory/stream_order.h"

namespace rdmacoll {

// Memory of a GPU, and memory of the host that is copied to it or from it.
struct HostCopy {
  std::byte* on_gpu = nullptr;
  std::byte* on_host = nullptr;
  uint64_t bytes = 0;
};
enum class CopyTo : uint8_t { host, gpu };

class DeviceMemory {
 public:
  virtual ~DeviceMemory() = default;
  // Finds the GPU with this number of CUDA, and back.
  virtual Status use(int number, Gpu& gpu) = 0;
  virtual int number_of(Gpu gpu) const = 0;
  // Finds the GPU that has this memory. kHost: the host reads and writes it.
  virtual Status find(const void* memory, Gpu& gpu) = 0;
  // Finds the GPU of a stream. Streams have the numbers of rc_request.
  virtual Status find_stream(uint64_t stream, Gpu& gpu) = 0;
  // Notes the work that the stream has now. `gpu`: a GPU whose memory the operation uses.
  virtual Status order(uint64_t stream, Gpu gpu, std::shared_ptr<StreamOrder>& order) = 0;
  // Makes the stream `follower` wait for the present work of another one. `gpu`: the one of default
  // streams.
  virtual Status follow(Gpu gpu, uint64_t stream, uint64_t follower) = 0;
  // Copies all of this, after the present work of the stream. Waits for the end, so later work of
  // any stream comes after it. `gpu`: the GPU of the memory, and of default streams.
  virtual Status copy(std::span<const HostCopy> copies, CopyTo to, Gpu gpu, uint64_t stream) = 0;
  // Pins memory of the engine's pool, so that copies need no memory of the driver. Call it while
  // holding the baton.
  virtual void pin(std::span<const HostCopy> copies, Gpu gpu) = 0;
  // Allocates memory of a GPU for a result, with an address even for no bytes. Null: there is none.
  // The memory may outlive this object.
  virtual std::shared_ptr<std::byte[]> allocate(Gpu gpu, uint64_t bytes) = 0;
  // Takes memory back, whose next owner gets it once the present work of the stream is done.
  virtual void retire(std::shared_ptr<std::byte[]> memory, uint64_t stream) = 0;
  // Like allocate(), for an array that a caller makes. Peers of the node may read it in place.
  virtual std::shared_ptr<std::byte[]> allocate_array(Gpu gpu, uint64_t bytes) = 0;
};

}  // namespace rdmacoll
