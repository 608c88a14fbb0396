// One rank's end of a SimNetwork.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "memory/pool.h"
#include "transport/sim/sim_gpu_access.h"
#include "transport/sim/sim_network.h"
#include "transport/transport.h"

namespace rdmacoll {

class SimTransport final : public Transport {
 public:
  SimTransport(SimNetwork& network, int rank);

  void connect(int peer) override;
  bool is_connected(int peer) const override { return peers_.is_connected(peer); }
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
  bool pin(const Piece& memory) override;
  void unpin(const Piece& memory) override;
  bool is_pinned(const Piece& memory) const override;
  GpuWays gpu_ways(Gpu gpu) const override;
  int wait_handle() const override { return -1; }
  Nanoseconds next_deadline() const override;
  void fail(int peer) override;
  bool needs_poll() const override { return false; }
  bool flushed() const override { return true; }  // posted data is under way
  Counters counters() const override { return counters_; }

  bool is_awake() const { return !armed_; }
  // Sets the pool of this rank. With `pool_alone`, transfers between nodes must use its memory.
  void use_pool(const MemoryPool& pool) { pool_ = &pool; }
  // Lets the rank's NIC access memory of GPUs. `access` outlives this object.
  void use_gpu_access(SimGpuAccess& access) { gpus_ = &access; }
  // Wakes the rank if it sleeps.
  void ring();

 private:
  friend class SimNetwork;
  using Key = std::pair<Lane, uint64_t>;
  static constexpr std::size_t kHeaderBytes = 32;  // in every message
  struct Posted {
    std::vector<Piece> pieces;
    uint64_t cookie;
    std::shared_ptr<const SimGpuAccess::Hold> hold = nullptr;  // for pieces on GPUs
  };
  // A received transfer whose data kernels do not see yet.
  struct Flushing {
    int peer = -1;
    Posted posted;
    int flushes = 0;  // pending ones
  };
  struct Published {
    std::vector<RemotePiece> pieces;
    bool awaited = false;
  };
  struct Peer {
    bool wanted = false;  // connect() was called here
    bool connected = false;
    bool dropped = false;  // failed, or fail() was called
    int flushing = 0;      // transfers that wait for flushes
    std::string cause;     // the peer is lost once these have ended; "": it is not
    std::map<Key, Posted> sends, receives, publications;  // posted here, not done
    std::map<Key, bool> grants;                           // grants of the peer, for sends
    std::map<Key, std::vector<std::byte>> early;          // eager data that came before its receive
    std::map<Key, Published> views;                       // publications of the peer, not released
    std::map<Key, uint64_t> awaits;                       // cookie
  };
  // By rank. Most ranks of a large world never connect.
  class Peers {
   public:
    explicit Peers(int ranks) : peers_(ranks) {}
    Peer& operator[](int rank) {
      if (peers_[rank] == nullptr) peers_[rank] = std::make_unique<Peer>();
      return *peers_[rank];
    }
    bool is_wanted(int rank) const {
      return peers_[rank] != nullptr && (peers_[rank]->wanted || peers_[rank]->connected);
    }
    bool is_connected(int rank) const { return peers_[rank] != nullptr && peers_[rank]->connected; }

   private:
    std::vector<std::unique_ptr<Peer>> peers_;
  };
  struct Arrival {
    enum class Kind : uint8_t {
      connected,
      sent,
      received,
      viewed,
      control,
      offered,
      answered,
      failed
    } kind;
    int peer = -1;
    uint64_t cookie = 0;
    Key key{};
    std::vector<std::byte> message;
    std::string cause;
    GpuSlab slab{};
    GpuViews views = GpuViews::no;
  };
  // Memory on GPUs of this rank and a peer. It stays open after the end of their connection.
  struct SharedGpus {
    struct Opened {
      GpuSlab slab;
      std::byte* memory = nullptr;
      Gpu gpu = kHost;
    };
    std::map<uint64_t, GpuViews> offers;  // by the begin of this rank's slab
    std::vector<GpuSlab> offered;         // by the peer, and not open yet
    std::vector<Opened> opened;
    GpuWork* opener = nullptr;
  };
  // Reads as a system call would: it returns a copy, never a pointer.
  class Reader final : public RemoteReader {
   public:
    Status read(std::span<const RemotePiece> from, std::size_t skip, std::byte* into,
                std::size_t bytes) const override;
  };

  bool refuses() { return network_.chance(network_.policy().busy); }
  void arrive(Arrival arrival);
  void lose(int peer, const std::string& cause);
  bool hear_late(int peer, const std::vector<std::byte>& message);
  std::size_t eager_bytes_to(int peer) const;
  bool is_eager(const Transfer& transfer) const;
  void send_eagerly(const Transfer& transfer, Key key);
  void receive_eagerly(int peer, Key key, const std::vector<std::byte>& bytes);
  void check_memory(const Transfer& transfer) const;
  void try_transfer(int peer, Key key);  // at the sender: starts when data and grant are there
  void deliver(int peer, Key key);
  std::vector<std::byte> gathered(const Posted& from) const;
  void scatter(const std::vector<std::byte>& bytes, const Posted& to) const;
  std::shared_ptr<const SimGpuAccess::Hold> hold(const Transfer& transfer);
  void flush(int peer, Posted received);
  void end_flush(uint64_t number, const std::string& fault);
  void deliver_over_links(int peer, Key key);
  void open_offers(int peer, GpuWork& work);
  void offered(int peer, const GpuSlab& slab, Sink& sink);
  bool open_offered(int peer, const GpuSlab& slab, GpuWork& work);
  void answer(int peer, const GpuSlab& slab, GpuViews views, const std::string& refusal);
  void answered(const Arrival& arrival, Sink& sink);
  bool locate_on_gpus(int peer, std::vector<RemotePiece>& pieces) const;
  void try_view(int peer, Key key);  // at the reader: starts when publication and await are there
  void greet(int peer);
  void look_for_silence(Sink& sink);
  SimTransport& other(int peer) { return network_.transport(peer); }

  SimNetwork& network_;
  int rank_;
  Peers peers_;
  std::map<int, SharedGpus> shared_gpus_;  // by peer
  std::deque<Arrival> arrivals_;
  Reader reader_;
  const MemoryPool* pool_ = nullptr;
  SimGpuAccess* gpus_ = nullptr;           // null: the NIC accesses no memory of GPUs
  std::map<uint64_t, Flushing> flushing_;  // by number
  uint64_t next_flushing_ = 0;
  Nanoseconds silence_checked_at_ = 0;
  bool armed_ = false;
  Nanoseconds polled_at_ = 0;  // when others last heard of us, since a poll is a heartbeat
  std::vector<Nanoseconds> silence_from_;  // by peer
  Counters counters_;
};

}  // namespace rdmacoll
