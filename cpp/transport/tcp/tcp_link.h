// One peer of the TCP transport: its stream, and what is posted on it.
#pragma once

#include <optional>
#include <string>

#include "base/fd.h"
#include "transport/liveness.h"
#include "transport/tcp/inbound.h"
#include "transport/tcp/outbound.h"

namespace rdmacoll::tcp {

// One stream a peer: two were no faster than one that has little unsent (ARCHITECTURE.md). Several
// would be several {socket, current frame} here: grants name (lane, sequence) and data frames their
// position, so it does not matter on which stream they come.
class Link {
 public:
  enum class State : uint8_t { apart, connected, failed };

  Link(int peer, uint32_t epoch, std::size_t chunk_bytes, std::size_t eager_bytes_max,
       Transport::Counters& counters)
      : peer_(peer),
        outbound_(epoch, chunk_bytes, eager_bytes_max, counters),
        inbound_(peer, epoch, eager_bytes_max, counters) {}

  State state() const { return state_; }
  int peer() const { return peer_; }
  bool is_connected() const { return state_ == State::connected; }
  Outbound& outbound() { return outbound_; }
  const Outbound& outbound() const { return outbound_; }

  void adopt(Fd socket, Nanoseconds peer_timeout, Nanoseconds now);
  Status post_recv(const Transfer& transfer);
  // What epoll said about the socket.
  void signal(uint32_t events);

  // Writes what waits, as far as the socket takes it. What the peer has sent meanwhile is looked
  // for without asking epoll first: of ranks that exchange, the second finds it there.
  bool write_at_once(Nanoseconds now, Sink& sink);
  // Reads, writes, and looks at the clock. A peer that failed is in state failed afterwards, its
  // cause to be reported.
  bool poll(Nanoseconds now, Sink& sink);
  // Something can be done without the socket having a say first.
  bool wants_poll() const;

  void close();  // forgets everything; no report
  std::string take_cause() { return std::exchange(cause_, {}); }
  bool is_sending() const { return outbound_.has_output() || outbound_.awaits_grants(); }
  bool flushed() const;
  Nanoseconds next_deadline() const { return liveness_->next_deadline(); }

 private:
  const std::string& fault() const {
    return inbound_.fault().empty() ? outbound_.fault() : inbound_.fault();
  }
  bool read(Nanoseconds now, Sink& sink);
  bool write(Nanoseconds now, Sink& sink);
  void drain_and_fail(const std::string& cause, Nanoseconds now, Sink& sink);
  void fail(const std::string& cause);

  int peer_;
  State state_ = State::apart;
  Fd socket_;
  bool readable_ = false;  // epoll is edge-triggered, so what it said is kept here
  bool writable_ = false;
  bool hangup_ = false;
  std::string cause_;
  std::optional<Liveness> liveness_;
  Outbound outbound_;
  Inbound inbound_;
};

}  // namespace rdmacoll::tcp
