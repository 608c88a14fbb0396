// Connects ranks of one node through shared memory. Rings carry records, mapped pools and one-copy
// reads carry bytes, and an eventfd wakes a sleeping rank. See Outbound for the protocol and
// Doorbell for the wake-up.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "base/clock.h"
#include "base/fd.h"
#include "base/status.h"
#include "base/world.h"
#include "memory/pool.h"
#include "transport/shm/doorbell.h"
#include "transport/shm/shm_peer.h"
#include "transport/socket_transport.h"

namespace rdmacoll {

struct ShmOptions {
  // process_vm_readv of memory outside the pool. unset: if the kernel permits it. false: never.
  // true: a peer that cannot be read has failed. A pair uses it when both sides can.
  std::optional<bool> one_copy;
  Nanoseconds peer_timeout = 5 * kSecond;
};

class ShmTransport final : public SocketTransport {
 public:
  // `pool` and `clock` outlive the transport. The pool of each peer stays mapped until the
  // transport is destroyed, so no view may be read after that.
  ShmTransport(const World& world, MemoryPool& pool, const Clock& clock, ShmOptions options);
  ~ShmTransport() override;
  // If this is an error, make no other call.
  const Status& opened() const { return opened_; }

  // `socket` is of the family AF_UNIX, since it passes descriptors.
  void adopt(int peer, Fd socket, bool is_dialer) override;

  bool is_connected(int peer) const override;
  Reach reach(int peer) const override;
  PeerPool pool_of(int peer) const override;

  Status post_control(int peer, std::span<const std::byte> message) override;
  Status post_send(const Transfer& transfer) override;
  Status post_recv(const Transfer& transfer) override;
  Status publish(const Transfer& transfer) override;
  Status await(int peer, Lane lane, uint64_t sequence, uint64_t cookie) override;
  Status release(int peer, Lane lane, uint64_t sequence) override;

  GpuViews gpu_views(int peer, const GpuSlab& slab) const override;
  void offer(int peer, const GpuSlab& slab, GpuWork& work) override;
  void open_offers(GpuWork& work) override;
  void stop_views(int peer) override;
  std::string end_of(int peer, bool on_gpu) override;

  bool poll(Sink& sink) override;
  bool arm() override;
  int wait_handle() const override { return epoll_.get(); }
  Nanoseconds next_deadline() const override;
  void show_core(int core, std::vector<int>& others) override;
  void fail(int peer) override;
  bool needs_poll() const override;
  bool flushed() const override;
  Counters counters() const override { return counters_; }

 private:
  shm::ShmPeer* usable(int peer);  // null if the peer has failed
  Status open();
  bool check_events(Nanoseconds now, Sink& sink);

  const World world_;
  MemoryPool& pool_;
  const Clock& clock_;
  const ShmOptions options_;
  Counters counters_;
  shm::Doorbell doorbell_;
  const uint64_t probe_;
  Fd epoll_;
  Status opened_;
  std::vector<std::unique_ptr<shm::ShmPeer>> peers_;  // by rank
  std::vector<shm::ShmPeer*> live_;                   // peers that have not failed
  bool is_connecting_ = false;                        // a live peer is not connected yet
  uint32_t polls_ = 0;
  Nanoseconds events_checked_at_;
};

}  // namespace rdmacoll
