// Connects ranks through reliable queue pairs, InfiniBand or RoCE. docs/internals/rdma.md has the
// protocol.
#pragma once

#include <memory>
#include <unordered_map>
#include <vector>

#include "base/fd.h"
#include "base/world.h"
#include "transport/rdma/rdma_peer.h"
#include "transport/socket_transport.h"

namespace rdmacoll {

class RdmaTransport final : public SocketTransport {
 public:
  // Opens the devices of `rails` (choose_rails). All arguments but `rails` and `options` outlive
  // the transport.
  static Status open(const World& world, MemoryPool& pool, const Clock& clock, rdma::Verbs& verbs,
                     std::vector<rdma::Rail> rails, rdma::PeerOptions options,
                     std::unique_ptr<RdmaTransport>& transport);
  ~RdmaTransport() override;

  // Takes over an authenticated stream socket. `connected` follows once both ranks have made their
  // queue pairs. Ignored if the peer is known already.
  void adopt(int peer, Fd socket, bool is_dialer = true) override;

  bool is_connected(int peer) const override;
  Reach reach(int peer) const override;
  Status post_control(int peer, std::span<const std::byte> message) override;
  Status post_send(const Transfer& transfer) override;
  Status post_recv(const Transfer& transfer) override;
  bool pin(const Piece& memory) override {
    return (options_.pins_callers_memory || memory.gpu != kHost) && slabs_->pin(memory);
  }
  void unpin(const Piece& memory) override;
  bool is_pinned(const Piece& memory) const override { return slabs_->is_pinned(memory); }
  void use_gpus(const GpuMemoryForNics& gpus) override;
  GpuWays gpu_ways(Gpu gpu) const override;
  bool poll(Sink& sink) override;
  bool arm() override;
  int wait_handle() const override { return epoll_.get(); }
  Nanoseconds next_deadline() const override;
  void fail(int peer) override;
  bool needs_poll() const override;
  bool flushed() const override;
  Counters counters() const override { return counters_; }

 private:
  struct Port {
    std::unique_ptr<rdma::Device> device;
    std::unordered_map<uint32_t, rdma::RdmaPeer*> peers;  // by queue pair
    std::vector<rdma::Completion> early;  // completions that arm() took, for the next poll
    uint32_t completions_left = 0;  // entries of its completion queue that no queue pair has yet
  };

  RdmaTransport(const World& world, MemoryPool& pool, const Clock& clock,
                std::vector<rdma::Rail> rails, const rdma::PeerOptions& options);
  Status open_devices(rdma::Verbs& verbs);
  Status meet(int peer, Fd socket);
  rdma::RdmaPeer* usable(int peer);
  bool take_completions(std::size_t rail, Sink& sink);
  void dispatch(std::size_t rail, const rdma::Completion& completion, Sink& sink);
  bool check_events(Nanoseconds now, Sink& sink);
  void take_events(std::size_t rail, Sink& sink);
  void fail_all(const std::string& cause, Sink& sink);
  bool end_departed_peers(Sink& sink);
  void forget_failed();
  void forget_unpinned();

  const World world_;
  MemoryPool& pool_;
  const Clock& clock_;
  rdma::PeerOptions options_;
  double copy_speed_ = 0;
  Counters counters_;
  Fd epoll_;
  std::vector<Port> devices_;
  rdma::Ports ports_;
  std::unique_ptr<rdma::Slabs> slabs_;
  std::unique_ptr<rdma::GpuAccess> gpus_;  // null: no NIC accesses memory of GPUs
  std::unique_ptr<rdma::Stages> send_stages_;
  std::unique_ptr<rdma::Stages> receive_stages_;
  std::vector<std::unique_ptr<rdma::RdmaPeer>> peers_;  // by rank
  std::vector<rdma::RdmaPeer*> live_;
  std::vector<std::pair<int, std::string>> failed_early_;  // peers to be reported as failed
  std::vector<rdma::Completion> completions_;              // scratch of one poll
  bool is_armed_ = false;
  bool is_ending_ = false;  // a peer's socket has ended
  bool is_touched_ = true;  // peers have work: new posts, or work that the last poll left
  bool has_work_ = false;   // a peer needed polling at the last check
  bool is_connecting_ = false;
  uint32_t polls_ = 0;
  Nanoseconds events_checked_at_ = 0;
};

}  // namespace rdmacoll
