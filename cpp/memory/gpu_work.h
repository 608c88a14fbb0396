// Work memory on GPUs, in slabs which the ranks of a node read from each other. The interface hides
// the GPU's driver from engine and transports.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "base/copy_costs.h"
#include "base/fd.h"
#include "base/status.h"
#include "memory/memory_kind.h"
#include "memory/piece.h"

namespace rdmacoll {

// Work memory of one rank on one GPU, or an allocation of its arrays (allocation_of), as it travels
// to another rank.
struct GpuSlab {
  std::array<std::byte, 64> handle{};  // CUDA IPC; opened in other processes only
  std::array<char, 48> uuid{};         // the GPU's, with a zero byte at the end
  uint64_t process = 0;                // a random number of the owner's process
  uint64_t begin = 0;                  // the address in the owner's process
  uint64_t bytes = 0;

  bool operator==(const GpuSlab&) const = default;
};

// Call only while holding the engine's baton.
class GpuWork {
 public:
  virtual ~GpuWork() = default;

  // Lets a thread make a slab for batches of `bytes`, unless there is one, or the GPU has no room.
  // Returns how many slabs the GPU has. 0: none yet, since the GPU is first made ready for sums,
  // which the first call begins, or none for a reason that was logged.
  virtual int prepare(Gpu gpu, uint64_t bytes) = 0;
  // Grows when a thread has ended some of this. Then prepare() and open() may give other answers.
  virtual uint64_t version() const = 0;
  virtual const GpuSlab& slab(Gpu gpu, int number) const = 0;
  // All peers of an operation have opened all slabs of the GPU. allocate() takes only such slabs.
  virtual void enable(Gpu gpu) = 0;
  // Bytes of the batches from which on the slab of a GPU is worth its kernels (measured).
  virtual uint64_t bytes_min(Gpu gpu) const = 0;
  // The costs of copies between the host and the slowest GPU in use. Unknown until a thread has
  // measured them.
  virtual CopyCosts copy_costs() const { return {}; }
  // Allocates memory of a slab, or returns null if there is no room.
  virtual std::byte* allocate(Gpu gpu, uint64_t bytes) = 0;
  virtual void free(Gpu gpu, std::byte* memory) = 0;

  // Maps the slab of a peer for a GPU of this process, whose kernels then reach it. Busy: no GPU is
  // in use, it is not ready for sums yet, or a thread still maps the slab. Then call it again when
  // version() has grown. Fails if no GPU can reach the slab.
  virtual Status open(const GpuSlab& slab, std::byte*& memory, Gpu& gpu) = 0;
  // Lets a thread unmap memory, which no work may use any more, or a slab that open() was to map.
  // The driver may wait for kernels of the program first.
  virtual void close(std::byte* memory) = 0;
  virtual void forget(const GpuSlab& slab) = 0;
  // Ends this side of a connection when all of this is unmapped.
  virtual void end_when_closed(Fd socket) = 0;
  // The connection of a peer has ended, which may still have slabs of this rank open. The peer
  // closes them before it closes its end of `socket`. No slab is freed before that.
  virtual void await_end(Fd socket) = 0;

  // The allocation of the engine that has all of this memory of callers, as an array of
  // DeviceMemory::allocate_array has it. With `for_peers` they may open it, so it stays. Null:
  // there is none.
  virtual const GpuSlab* allocation_of(const Piece& memory, bool for_peers) = 0;
};

}  // namespace rdmacoll
