// A peer's memory: its pool, mapped, and the rest of it by process_vm_readv (one copy,
// straight from its address space into ours), where the kernel permits that.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "base/fd.h"
#include "base/status.h"
#include "base/world.h"
#include "memory/piece.h"
#include "memory/private_view.h"
#include "transport/shm/record.h"
#include "transport/transport.h"

namespace rdmacoll::shm {

class RemoteMemory final : public RemoteReader {
 public:
  RemoteMemory(int rank, const Member& member) : rank_(rank), host_(member.host) {}

  // `base`: where the peer sees its pool.
  Status map_pool(Fd pool, uint64_t base, uint64_t bytes);
  PeerPool pool() const {
    return {pool_->shared.data(), pool_->view.data(), pool_->shared.bytes(), pool_};
  }

  // Whether one of the candidates is the process that has `value` at `address`; remembers which. A
  // pid may be another one in our pid namespace, so what counts is the word.
  bool probe(std::span<const int64_t> pids, uint64_t address, uint64_t value);

  // Both sides may read each other.
  void allow_one_copy() { one_copy_ = true; }
  bool one_copy() const { return one_copy_; }
  // The peer has gone: its pid may be given to another process, so nothing is read any more. The
  // mapping stays, as somebody may be reading it.
  void forget() { gone_.store(true, std::memory_order_relaxed); }

  // Checks what the peer says about its memory.
  Status locate(const PieceRecord& record, RemotePiece& piece) const;

  Status read(std::span<const RemotePiece> from, std::size_t skip, std::byte* into,
              std::size_t bytes) const override;

 private:
  Status read_vector(std::span<const RemotePiece> from, std::size_t skip, std::byte* into,
                     std::size_t bytes) const;
  Status failed(int error) const;

  int rank_;
  std::string host_;
  int64_t pid_ = 0;
  uint64_t pool_base_ = 0;
  std::shared_ptr<const PoolMapping> pool_ = std::make_shared<const PoolMapping>();
  bool one_copy_ = false;
  std::atomic<bool> gone_ = false;
};

}  // namespace rdmacoll::shm
