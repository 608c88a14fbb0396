// The access of a simulated rank's NIC to memory of GPUs. The simulator makes it.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>

#include "memory/gpu_memory_facts.h"
#include "memory/piece.h"

namespace rdmacoll {

class SimGpuAccess {
 public:
  // The registrations of a transfer's pieces. They stay until it is destroyed.
  class Hold {
   public:
    virtual ~Hold() = default;
    // Accesses by the NIC. `memory` is a part of the pieces.
    virtual void read(const Piece& memory, std::byte* into) const = 0;
    virtual void write(const Piece& memory, const std::byte* bytes) const = 0;
  };

  virtual ~SimGpuAccess() = default;
  // As in Transport.
  virtual GpuWays ways(Gpu gpu) const = 0;
  virtual bool pin(const Piece& memory) = 0;
  virtual void unpin(const Piece& memory) = 0;
  virtual bool is_pinned(const Piece& memory) const = 0;
  // The pieces on GPUs must be pinned.
  virtual std::shared_ptr<const Hold> hold(std::span<const Piece> pieces) = 0;
  // Calls `done` when kernels see what the NIC has written to this GPU. `written`: a held byte of
  // it. `fault`: why they never will, or "".
  virtual void flush(const Piece& written, std::function<void(const std::string& fault)> done) = 0;
  // Goes on with flushes. Call it in each poll.
  virtual void push() = 0;
  // Whether push() has something to do.
  virtual bool needs_push() const = 0;
};

}  // namespace rdmacoll
