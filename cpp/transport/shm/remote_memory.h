// A peer's memory. Its pool is mapped. process_vm_readv reads other memory with one copy between
// the two address spaces, if the kernel permits it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "base/fd.h"
#include "base/status.h"
#include "memory/piece.h"
#include "memory/private_view.h"
#include "transport/shm/record.h"
#include "transport/transport.h"

namespace rdmacoll::shm {

class RemoteMemory final : public RemoteReader {
 public:
  explicit RemoteMemory(int rank) : rank_(rank) {}

  // `base`: the pool's address in the peer's process.
  Status map_pool(Fd pool, uint64_t base, uint64_t bytes);
  PeerPool pool() const {
    return {pool_->shared.data(), pool_->view.data(), pool_->shared.bytes(), pool_};
  }

  // Finds the candidate process that has `value` at `address`, and remembers its pid. A pid may
  // name another process in our pid namespace, so only the value proves it.
  bool probe(std::span<const int64_t> pids, uint64_t address, uint64_t value);

  // Memory on a GPU that is mapped at `mapped` for the GPU of this process.
  struct OnGpu {
    uint64_t begin = 0;  // in the peer's process
    uint64_t bytes = 0;
    std::byte* mapped = nullptr;
    Gpu gpu = kHost;
  };
  void add(const OnGpu& memory) { on_gpus_.push_back(memory); }
  std::size_t gpu_slabs() const { return on_gpus_.size(); }
  std::vector<OnGpu> take_gpu_memory() { return std::exchange(on_gpus_, {}); }

  // Call when both sides can read each other.
  void allow_one_copy() { one_copy_ = true; }
  bool one_copy() const { return one_copy_; }
  // Call when the peer has gone. Its pid may pass to another process, so no read follows. The
  // mapping stays, since a thread may be reading it.
  void forget() { gone_.store(true, std::memory_order_relaxed); }

  // Checks the peer's description of its memory.
  Status locate(const PieceRecord& record, RemotePiece& piece) const;

  Status read(std::span<const RemotePiece> from, std::size_t skip, std::byte* into,
              std::size_t bytes) const override;

 private:
  Status read_vector(std::span<const RemotePiece> from, std::size_t skip, std::byte* into,
                     std::size_t bytes) const;
  Status locate_on_gpu(uint64_t address, uint64_t bytes, RemotePiece& piece) const;
  // The engine makes a sentence of the cause.
  Status failed(int error) const;

  int rank_;
  int64_t pid_ = 0;
  uint64_t pool_base_ = 0;
  std::shared_ptr<const PoolMapping> pool_ = std::make_shared<const PoolMapping>();
  std::vector<OnGpu> on_gpus_;
  bool one_copy_ = false;
  std::atomic<bool> gone_ = false;
};

}  // namespace rdmacoll::shm
