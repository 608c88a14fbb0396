// One peer of the TCP transport: its streams and its posted transfers.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/fd.h"
#include "transport/liveness.h"
#include "transport/tcp/inbound.h"
#include "transport/tcp/outbound.h"
#include "transport/tcp/side_stream.h"
#include "transport/tcp/stream_socket.h"

namespace rdmacoll::tcp {

// The first stream exists from the start and carries everything but stripes. Further streams help
// once they are open. Without them the first stream carries everything.
struct Streams {
  int count = 1;  // streams of each peer
  uint64_t stripe_bytes = kStripeBytes;
};

// The error text of a further stream (`number`, from 1) that failed while the first one goes on.
std::string stream_text(int number, int streams, const std::string& cause);

class TcpPeer {
 public:
  enum class State : uint8_t { apart, connected, failed };

  TcpPeer(int peer, uint32_t epoch, std::size_t chunk_bytes, std::size_t eager_bytes_max,
          Transport::Counters& counters)
      : peer_(peer),
        epoch_(epoch),
        counters_(counters),
        outbound_(epoch, chunk_bytes, eager_bytes_max, counters),
        inbound_(peer, epoch, eager_bytes_max, counters) {}

  State state() const { return state_; }
  int peer() const { return peer_; }
  bool is_connected() const { return state_ == State::connected; }
  Outbound& outbound() { return outbound_; }
  const Outbound& outbound() const { return outbound_; }

  StreamSocket& socket() { return stream_; }
  void adopt(Fd socket, Nanoseconds peer_timeout, Nanoseconds now);
  bool has_stream(int number) const;
  // Adds the stream `number` (from 1) of `streams`.
  StreamSocket& adopt_stream(int number, const Streams& streams, Fd socket,
                             Nanoseconds peer_timeout, Nanoseconds now);
  Status post_recv(const Transfer& transfer);
  // Writes waiting frames, as far as the socket takes them. It also reads without asking epoll
  // first. When two ranks exchange data, the second one to write finds the peer's data there.
  bool write_at_once(Nanoseconds now, Sink& sink);
  // Reads, writes, and checks the timeouts. A peer that fails is in state failed afterwards, and
  // its cause is to be reported.
  bool poll(Nanoseconds now, Sink& sink);
  // Returns true if there is work that needs no event of the socket.
  bool wants_poll() const;

  void close();  // Forgets everything, without a report.
  std::string take_cause() { return std::exchange(cause_, {}); }
  bool is_sending() const;
  bool flushed() const;
  Nanoseconds next_deadline() const;

 private:
  const std::string& fault() const {
    return inbound_.fault().empty() ? outbound_.fault() : inbound_.fault();
  }
  // A large transfer is read in this turn. The output goes with the answer to it in the next one.
  bool output_waits() const { return inbound_.is_held() && stream_.readable; }
  bool read(Nanoseconds now, Sink& sink);
  bool write(Nanoseconds now, Sink& sink);
  void drain_and_fail(const std::string& cause, Nanoseconds now, Sink& sink);
  bool poll_beside(Nanoseconds now, Sink& sink);
  void end(const std::string& cause, Nanoseconds now, Sink& sink);
  void fail(const std::string& cause);

  int peer_;
  State state_ = State::apart;
  uint32_t epoch_;
  Transport::Counters& counters_;
  StreamSocket stream_;
  std::string cause_;
  std::optional<Liveness> liveness_;
  Outbound outbound_;
  Inbound inbound_;

  int streams_ = 1;
  // Kept until the peer is destroyed, since epoll holds their addresses.
  std::vector<std::unique_ptr<SideStream>> beside_;
};

}  // namespace rdmacoll::tcp
