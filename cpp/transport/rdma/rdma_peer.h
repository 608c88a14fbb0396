// One peer of the RDMA transport: its queue pairs (one a rail), what is under way on them, and the
// socket that tells whether it lives.
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

// Of the whole transport; outlives its peers.
struct Ports {
  std::vector<Rail> rails;
  std::vector<Device*> devices;  // by rail
};

struct PeerOptions {
  uint32_t accumulation_bytes = 8 << 10;  // what a message takes, and the largest eager transfer
  bool finds_cut = false;                 // ... or how large that may be found to be
  uint32_t chunk_bytes = 4 << 20;         // of one write
  uint32_t queue_depth = 128;             // sends that a queue pair holds
  Nanoseconds peer_timeout = 5 * kSecond;
  PathSettings path;  // timeouts, retries, class; its mtu, if set, bounds both ends'
};

// The least that the messages of one peer take of the pool.
uint64_t message_bytes_min(uint64_t accumulation_bytes);
// What messages may take where nobody has set it, so that those of all peers fit.
uint32_t accumulation_that_fits(std::size_t pool_bytes, int ranks);

// What one queue pair of one peer may need of the completion queue.
uint32_t completions_of_a_pair(const PeerOptions& options, std::size_t pool_bytes);

// How long data of a peer who left may wait for its receive: a decision may be on its way still.
inline constexpr Nanoseconds kClaimTime = kSecond / 2;
// ... and how long what he acknowledged may be on its way: his socket's end overtakes it.
inline constexpr Nanoseconds kAcknowledgementTime = 50 * kMillisecond;

class RdmaPeer {
 public:
  enum class State : uint8_t { greeting, joining, testing, connected, failed };

  RdmaPeer(const World& world, int rank, const Ports& ports, const PeerOptions& options,
           MemoryPool& pool, Home home);
  RdmaPeer(const RdmaPeer&) = delete;
  RdmaPeer& operator=(const RdmaPeer&) = delete;
  ~RdmaPeer();

  // Makes the queue pairs, and greets.
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
  void look_at_socket(Nanoseconds now, Sink& sink);
  void keep_alive(Nanoseconds now, Sink& sink);
  // Its socket has ended, which overtakes what it sent before: that lies in the completion queues.
  // Once these are empty, end() reports the failure, as soon as all that came has its receive.
  bool has_ended() const { return !end_.empty(); }
  bool end(Nanoseconds now, Sink& sink);
  // Of what is done. Returns whether there was any.
  bool report(Sink& sink);
  // Hands to the device what may go. What is wrong with that is said by end_if_at_fault().
  void push();
  bool end_if_at_fault(Sink& sink);

  void fail(Sink& sink, const std::string& cause);
  // By what a device says here: the peer, whose own may find nothing, hears of it.
  void give_up(Sink& sink, const std::string& cause);
  void close();

  // Nothing is left to do until the device or the socket says something.
  bool may_sleep() const;
  bool needs_poll() const { return !may_sleep() || has_more(); }
  // What may_sleep() does not wait for, since an event will come.
  bool has_more() const;
  bool is_flushed() const;
  // Devices may read or write memory of transfers.
  bool has_transfers() const { return outbound_.has_transfers() || inbound_.has_transfers(); }
  Nanoseconds next_deadline() const {
    return has_ended() ? claim_until() : liveness_->next_deadline();
  }

 private:
  // Since its socket has ended, what it sent or acknowledged before is waited for.
  Nanoseconds claim_until() const {
    if (inbound_.has_early()) return ended_at_ + kClaimTime;
    return outbound_.has_transfers() ? ended_at_ + kAcknowledgementTime : ended_at_;
  }
  Status make_pairs();
  void meet(Sink& sink);
  Status accept_greeting(std::span<const std::byte> bytes);
  PathSettings path_to(const Rail& rail, const GreetingEnd& remote) const;
  void test_path();
  void time_way();
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
  Home home_;
  State state_ = State::greeting;
  std::byte* memory_ = nullptr;  // of messages, both ways
  RegisteredMemory registered_;
  std::vector<Pair> pairs_;
  std::vector<GreetingEnd> remote_;
  GreetingSocket socket_;
  std::optional<Liveness> liveness_;
  Link link_;
  Outbound outbound_;
  Inbound inbound_;
  uint32_t messages_ = 0;    // received
  uint32_t path_tests_ = 0;  // sent on other rails than the first, and not acknowledged
  WayTimer way_;             // of the first rail
  bool is_tried_ = false;    // our way to the peer is, and the record that says so is on its way
  bool is_open_ = false;     // the peer's way to us is
  bool heard_ = false;
  std::string echo_;  // of a failure that is not seen yet, as a cause, or ""
  int looks_left_ = 0;
  std::string end_;  // why its socket ended
  Nanoseconds ended_at_ = 0;
};

}  // namespace rdmacoll::rdma
