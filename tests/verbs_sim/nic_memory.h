// Memory of a host's GPUs, as its NICs find it.
//
// Freed addresses are given again at once, so a stale key shows. Writes of a NIC stay invisible to
// kernels until a flush that covers this NIC, unless the GPU orders writes itself.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "memory/memory_kind.h"
#include "transport/rdma/verbs.h"

namespace rdmacoll::verbs_sim {

class GpusOfHost {
 public:
  // Memory that a NIC has registered, and its part of BAR1. Addresses are those of requests.
  class Range {
   public:
    virtual ~Range() = default;
    virtual Gpu gpu() const = 0;
    // Counts an access if the range is not of the memory that is at the address now.
    virtual void check(const std::byte* address) = 0;
    // These two check as well.
    virtual void read(const std::byte* address, std::span<std::byte> into) = 0;
    virtual void write(const void* nic, std::byte* address, std::span<const std::byte> bytes) = 0;
  };

  virtual ~GpusOfHost() = default;
  virtual bool owns(const std::byte* address) const = 0;
  // Return 0 or an errno.
  virtual int map(std::byte* address, std::size_t bytes, std::unique_ptr<Range>& range) = 0;
  virtual int map_dma_buf(const rdma::DmaBufPart& part, std::unique_ptr<Range>& range) = 0;
  // A read by the NIC, which pushes its earlier writes to this GPU.
  virtual void flush_by(const void* nic, Gpu gpu) = 0;
};

}  // namespace rdmacoll::verbs_sim
