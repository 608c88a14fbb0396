// One peer of the RDMA transport: its queue pairs (one per rail), their transfers, and the socket
// that shows whether the peer is alive.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/world.h"
#include "transport/liveness.h"
#include "transport/rdma/eager_cut.h"
#include "transport/rdma/greeting.h"
#include "transport/rdma/inbound.h"
#include "transport/rdma/outbound.h"

namespace rdmacoll::rdma {

// Ports of the whole transport. They outlive its peers.
struct Ports {
  std::vector<Rail> rails;
  std::vector<Device*> devices;  // by rail
};

struct PeerOptions {
  uint32_t accumulation_bytes = 8 << 10;  // capacity of a message, and the largest eager transfer
  bool finds_cut = false;                 // the eager cut is measured, up to that limit
  uint32_t chunk_bytes = 4 << 20;         // the most bytes of one write
  uint32_t queue_depth = 128;             // sends that a queue pair holds
  Nanoseconds peer_timeout = 5 * kSecond;
  PathSettings path;                // timeouts, retries, class; `mtu`, if set, limits both ends
  bool pins_callers_memory = true;  // false: pin() registers no memory of the host
};

// The least memory of the pool that the messages of one peer take, in bytes.
uint64_t message_bytes_min(uint64_t accumulation_bytes);
// The default capacity of a message, so that the messages of all peers fit into the pool.
uint32_t accumulation_that_fits(std::size_t pool_bytes, int ranks);

// The entries of the completion queue that one queue pair of one peer may need.
uint32_t completions_of_a_pair(const PeerOptions& options, std::size_t pool_bytes);

// How long data of a departed peer may wait for its receive, since a decision may be on its way.
inline constexpr Nanoseconds kClaimTime = kSecond / 2;
// How long acknowledged data may be on its way, since the socket's end overtakes it.
inline constexpr Nanoseconds kAcknowledgementTime = 50 * kMillisecond;

class RdmaPeer {
 public:
  enum class State : uint8_t { greeting, joining, testing, connected, failed };

  RdmaPeer(const World& world, int rank, const Ports& ports, const PeerOptions& options,
           MemoryPool& pool, RankState rank_state);
  RdmaPeer(const RdmaPeer&) = delete;
  RdmaPeer& operator=(const RdmaPeer&) = delete;
  ~RdmaPeer();

  // Makes the queue pairs and sends the greeting.
  Status open(Fd socket, Nanoseconds now);

  int rank() const { return rank_; }
  State state() const { return state_; }
  bool is_connected() const { return state_ == State::connected; }
  bool has_failed() const { return state_ == State::failed; }
  int socket() const { return socket_.fd(); }
  uint32_t eager_bytes() const { return link_.cuts.eager_bytes; }
  // Numbers of the queue pairs, by rail.
  std::vector<uint32_t> queue_pairs() const;

  Outbound& outbound() { return outbound_; }
  Inbound& inbound() { return inbound_; }

  void handle(std::size_t rail, const Completion& completion, Sink& sink);
  void check_socket(Nanoseconds now, Sink& sink);
  void keep_alive(Nanoseconds now, Sink& sink);
  // Returns true after the end of the peer's socket. Data that the peer sent before may still be in
  // the completion queues. Once these are empty and all data has its receive, end() reports the
  // failure.
  bool has_ended() const { return !end_.empty(); }
  bool end(Nanoseconds now, Sink& sink);
  // Reports finished transfers. Returns whether there were any.
  bool report(Sink& sink);
  // Gives ready requests to the device. end_if_at_fault() reports an error of it.
  void push();
  bool end_if_at_fault(Sink& sink);

  void fail(Sink& sink, const std::string& cause);
  // Fails the peer because of an error of the device here. It also tells the peer, whose own device
  // may find nothing.
  void give_up(Sink& sink, const std::string& cause);
  void close();

  // Returns true if nothing is to be done until the device or the socket has an event.
  bool may_sleep() const;
  bool needs_poll() const { return !may_sleep() || has_more(); }
  // Returns true if there is work that waits for such an event.
  bool has_more() const;
  bool is_flushed() const;
  // Returns true if devices may read or write memory of transfers.
  bool has_transfers() const { return outbound_.has_transfers() || inbound_.has_transfers(); }
  Nanoseconds next_deadline() const {
    return has_ended() ? claim_until() : liveness_->next_deadline();
  }

 private:
  // The time until which end() waits for data that was sent or acknowledged before the socket's
  // end.
  Nanoseconds claim_until() const {
    if (inbound_.has_early()) return ended_at_ + kClaimTime;
    const bool is_awaited = outbound_.has_transfers() || inbound_.has_flushes();
    return is_awaited ? ended_at_ + kAcknowledgementTime : ended_at_;
  }
  Status make_pairs();
  void meet(Sink& sink);
  Status accept_greeting(std::span<const std::byte> bytes);
  PathSettings path_to(const Rail& rail, const GreetingEnd& remote) const;
  void test_path();
  void time_request();
  void open_path_if_tested(Sink& sink);
  void begin_if_ready(Sink& sink);
  void handle_sent(const Sent& sent, Sink& sink);
  void handle_failure(std::size_t rail, const Completion& completion, Sink& sink);
  std::string cause_of_echo() const;
  bool handle_message(std::size_t rail, const Completion& completion, Sink& sink);
  bool handle_record(const RecordHeader& header, std::span<const std::byte> payload, Sink& sink);

  const World& world_;
  int rank_;
  const Ports& ports_;
  PeerOptions options_;
  MemoryPool& pool_;
  RankState rank_state_;
  State state_ = State::greeting;
  std::byte* memory_ = nullptr;  // messages in both directions
  RegisteredMemory registered_;
  std::vector<Pair> pairs_;
  std::vector<GreetingEnd> remote_;
  GreetingSocket socket_;
  std::optional<Liveness> liveness_;
  Link link_;
  Outbound outbound_;
  Inbound inbound_;
  uint32_t messages_ = 0;       // received
  uint32_t path_tests_ = 0;     // sent on rails after the first, and not acknowledged
  LatencyTimer latency_timer_;  // times requests of the first rail
  bool is_tried_ = false;  // our path to the peer works, and the record that confirms it is sent
  bool is_open_ = false;   // the peer's path to us works
  bool heard_ = false;
  std::string echo_;  // the text of a failure that must be the consequence of an unseen one, or ""
  int checks_left_ = 0;
  std::string end_;  // why the peer's socket ended
  Nanoseconds ended_at_ = 0;
};

}  // namespace rdmacoll::rdma
