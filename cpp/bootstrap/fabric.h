// All transports as one: finds the peers, authenticates them, and sends every call to the transport
// that reaches the peer.
//
// In each pair the lower rank calls and the higher one waits, so that a pair never has two
// connections. Some transports use several streams: once the first one is there, the caller
// opens the others. The pair's transport says whether they meet on an abstract Unix socket or over
// TCP. A rank accepts calls from begin() on, before its own connect().
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/config.h"
#include "base/world.h"
#include "bootstrap/card.h"
#include "bootstrap/dial.h"
#include "bootstrap/listener.h"
#include "bootstrap/transport_choice.h"
#include "memory/pool.h"
#include "transport/socket_transport.h"

namespace rdmacoll {

class Fabric;

struct FabricOptions {
  int rank = 0;
  int size = 1;
  std::vector<int> numbers;  // ranks' numbers in sentences, for a part of a job; empty: as here
  std::string job;
  std::vector<std::byte> secret;
  uint32_t epoch = 0;
  Config config;
  uint32_t abi = 0;                             // RC_ABI_VERSION, for the fingerprint
  std::map<std::string, std::string> settings;  // world_settings(), for the fingerprint
  Fabric* host = nullptr;                // its listeners serve this one over TCP; for open() alone
  std::vector<TransportRow> transports;  // in order of preference; empty: transport_table()
};

class Fabric final : public Transport {
 public:
  // Opens the listeners. `pool` and `clock` outlive the fabric.
  static Status open(FabricOptions options, MemoryPool& pool, const Clock& clock,
                     std::unique_ptr<Fabric>& fabric);

  const std::string& card() const { return card_text_; }

  // Compares the fingerprints on the `cards` of all ranks. Finds the leader of this rank's node:
  // the lowest rank whose Unix socket takes a connection from here right now. Blocks, for some
  // seconds at most.
  Status probe_node(const std::vector<std::string>& cards, int& leader);

  // After probe_node: whether other ranks of this user run on this node, as far as cards tell, and
  // the CPUs of all of them, ascending. A launcher may bind each rank to one.
  bool has_neighbours() const;
  std::vector<int> node_cpus() const;

  // Makes the world from the leader that each rank has found. Call it after probe_node.
  Status make_world(const std::vector<int>& leaders, World& world) const;

  // From now on connect() works. ConfigError if RDMACOLL_TRANSPORT leaves two ranks without a
  // transport.
  Status begin(const World& world);

  // Callers at this rank's listeners that begin as at a rendezvous go to `socket`, as the numbers
  // of their descriptors.
  void forward_rendezvous_to(Fd socket) { listener_->forward_rendezvous_to(std::move(socket)); }
  // The peers whose connections this rank waits for, with addresses and last errors; "" if it waits
  // for none.
  std::string waiting() const;

  // The transports in use now: "shm (3 peers), tcp (4 peers)".
  std::string summary() const;
  // The transports that the pairs of this world use: "shm", "tcp", "shm+rdma" or "none".
  std::string transport_name() const { return choice_.names(); }
  // After begin(): all pairs of this world share memory. False in a world of one.
  bool shares_memory() const;
  // After begin(): a device moves data of some pairs, and accesses pinned memory only.
  bool via_nic() const;
  // After begin(): the names of these devices.
  std::vector<std::string> nics() const;
  // After begin(): the ports of devices that are in use, for display.
  std::vector<std::string> ports() const;
  // After begin(): the rate of a node's links to other nodes, in Gbit/s; 0: unknown, or no other
  // nodes.
  double link_gbit_per_s() const;
  // After begin(): lines for one rank to log. The choice of ports, and warnings about transports
  // that are not used, or not as the settings say.
  std::vector<std::string> choices() const;
  const std::vector<std::string>& notes() const { return notes_; }

  void connect(int peer) override;
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
  bool pin(const Piece& memory) override;
  void unpin(const Piece& memory) override;
  bool is_pinned(const Piece& memory) const override;
  void use_gpus(const GpuMemoryForNics& gpus) override;
  GpuWays gpu_ways(Gpu gpu) const override;
  bool poll(Sink& sink) override;
  bool arm() override;
  int wait_handle() const override { return epoll_.get(); }
  Nanoseconds next_deadline() const override;
  void show_core(int core, std::vector<int>& others) override;
  void fail(int peer) override;
  bool needs_poll() const override;
  bool flushed() const override;
  Counters counters() const override;

 private:
  // adopted: authenticated and handed over; connected: the transport has reported it.
  enum class State : uint8_t { idle, dialing, awaiting, adopted, connected, failed };
  class StateRecorder;
  struct Peer {
    State state = State::idle;
    SocketTransport* route = nullptr;  // the transport of this pair; null for this rank itself
    SocketKind socket_kind = SocketKind::tcp;
    Transport* connected = nullptr;  // the route, once connected
    Nanoseconds deadline = kNever;   // set in State::awaiting, and while streams are missing
    int missing = 0;                 // streams that the peer has yet to open
  };

  Fabric(FabricOptions options, MemoryPool& pool, const Clock& clock);
  Status check_room() const;
  Status listen();
  int number(int rank) const;
  bool is_neighbour(const Card& card) const;
  Status open_transports();
  void note_choice();
  bool node_socket_accepts(int peer, Nanoseconds deadline) const;
  std::vector<Endpoint> endpoints_of(int peer) const;
  bool meets_on_unix_socket(int peer) const;
  // Null if the peer is not connected yet, or gone; see answer_unconnected().
  Transport* connected(int peer) const;
  Status answer_unconnected(int peer) const;
  bool is_connecting() const;
  bool connect_peers(Sink& sink);
  void call(int peer, int stream, Nanoseconds now);
  bool admit(Caller caller, Nanoseconds now);
  int streams_of(int peer) const;
  std::string failed_call(const Dial& dial) const;
  void hand_over(int peer, int stream, Fd socket, bool dialer);
  std::string own_fault(std::string_view what, const std::string& cause) const;
  void fail_peer(int peer, const std::string& cause, Sink& sink);
  void set_state(int peer, State state);
  Nanoseconds next_connect_deadline() const;
  bool take_signals();

  FabricOptions options_;
  MemoryPool& pool_;
  const Clock& clock_;
  Nanoseconds start_timeout_;
  Credentials credentials_;
  Card card_;
  std::string card_text_;
  std::vector<Card> cards_;
  World world_;

  Fd epoll_;          // holds connect_epoll_ and the transports' epolls
  Fd connect_epoll_;  // listeners and connections that are not authenticated yet
  std::unique_ptr<Listener> listener_;
  // Shared with the host's listener, if there is a host.
  std::shared_ptr<SecondaryWorld> secondary_;
  std::vector<std::unique_ptr<Dial>> dials_;
  std::vector<Caller> callers_;        // reused
  std::vector<Caller> early_streams_;  // further streams that came before the first
  std::vector<Peer> peers_;
  int waiting_ = 0;         // peers in the state `awaiting`
  int missing_ = 0;         // streams that peers have yet to open
  bool signalled_ = false;  // a caller waits, or arm() could not exclude it
  uint32_t polls_ = 0;
  uint64_t handshakes_ = 0;

  TransportChoice choice_;
  std::vector<std::string> notes_;
  std::vector<std::unique_ptr<SocketTransport>> transports_;
};

}  // namespace rdmacoll
