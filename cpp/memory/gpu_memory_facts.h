// Facts about memory of GPUs, as transports need them. The driver is behind this interface, so
// transports include nothing of CUDA.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "base/fd.h"
#include "base/status.h"
#include "memory/memory_kind.h"
#include "memory/piece.h"

namespace rdmacoll {

// One allocation of GPU memory.
struct GpuAllocation {
  std::byte* begin = nullptr;
  std::size_t bytes = 0;
  uint64_t buffer_id = 0;  // no other allocation of this process ever has it
  Gpu gpu = kHost;
  bool is_capable = false;  // NICs may access it (GPUDirect RDMA)

  bool operator==(const GpuAllocation&) const = default;
};

// The directions in which NICs access memory of a GPU.
struct GpuWays {
  bool sends = false;     // they read it
  bool receives = false;  // they write it

  bool any() const { return sends || receives; }
  bool operator==(const GpuWays&) const = default;
};

// The means that makes a NIC's writes visible to kernels of a GPU.
enum class WriteFlush : uint8_t {
  none,  // the GPU orders writes itself
  call,  // GpuMemoryFacts::flush()
  read,  // a read by the NIC that wrote
};

// Call only while holding the engine's baton.
class GpuMemoryFacts {
 public:
  virtual ~GpuMemoryFacts() = default;
  // The directions that are decided for this GPU and all NICs of the job.
  virtual GpuWays ways(Gpu gpu) const = 0;
  // The GPU in sentences: "the GPU cuda:0 (Tesla K80, GPU-12345678-...)".
  virtual std::string text(Gpu gpu) const = 0;
  // Finds the allocation that holds the byte at `address`. Returns false if no GPU memory is there.
  virtual bool find(const std::byte* address, GpuAllocation& allocation) = 0;
  // Makes a descriptor of these pages of the host's page size. An error: the driver has none, and
  // the sentence says why.
  virtual Status dma_buf(Gpu gpu, const Piece& pages, Fd& descriptor) = 0;
  // From now on, synchronous copies of the allocation wait until they are done. Otherwise a NIC
  // could read bytes that an earlier copy has not written yet.
  virtual Status set_sync_memops(const GpuAllocation& allocation) = 0;
  // The most bytes that all registrations of this GPU's memory may take together: its BAR1. 0 if
  // unknown.
  virtual uint64_t registrable_bytes(Gpu gpu) = 0;
  virtual WriteFlush write_flush(Gpu gpu) = 0;
  // Makes all earlier writes of all NICs visible to kernels of this GPU.
  virtual Status flush(Gpu gpu) = 0;
};

// Memory of GPUs for a transport whose NICs access it.
struct GpuMemoryForNics {
  std::shared_ptr<GpuMemoryFacts> facts;
  // Hears once why NICs cannot access memory of a GPU.
  std::function<void(const std::string&)> say = [](const std::string&) {};
};

}  // namespace rdmacoll
