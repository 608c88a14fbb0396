// A further connection to a peer. It carries only stripes of large transfers and heartbeats. The
// transfers themselves are posted in Outbound and Inbound of the first stream.
#pragma once

#include <array>
#include <optional>
#include <string>

#include "transport/liveness.h"
#include "transport/tcp/inbound.h"
#include "transport/tcp/outbound.h"
#include "transport/tcp/stream_socket.h"

namespace rdmacoll::tcp {

class SideStream {
 public:
  SideStream(int number, uint32_t epoch, Outbound& outbound, Inbound& inbound,
             Transport::Counters& counters);
  void adopt(Fd socket, Nanoseconds peer_timeout, Nanoseconds now);

  int number() const { return number_; }  // from 1
  StreamSocket& socket() { return socket_; }

  // Reads, writes, and checks the timeouts.
  bool poll(Nanoseconds now, Sink& sink);
  // Reads the remaining bytes of a stream that has ended.
  void drain(Nanoseconds now, Sink& sink);
  void close();

  // The reason why the stream is unusable, or "".
  const std::string& cause() const { return cause_; }
  // The time of the connection's end. kNever: it is open, even if cause() is set.
  Nanoseconds ended_at() const { return ended_at_; }
  bool has_ended() const { return ended_at_ != kNever; }

  bool is_sending() const { return header_left_ > 0 || out_left_ > 0; }
  bool wants_poll() const;
  bool flushed() const { return !is_sending() && (!socket_.fd || socket_.is_acknowledged()); }
  Nanoseconds next_deadline() const;

 private:
  bool is_open() const { return cause_.empty() && socket_.fd; }
  bool read(Nanoseconds now, Sink& sink);
  ssize_t receive(std::size_t& wanted);
  std::string begin_frame();
  bool write(Nanoseconds now, Sink& sink);
  void end(int error, Nanoseconds now);

  int number_;
  uint32_t epoch_;
  Outbound& outbound_;
  Inbound& inbound_;
  Transport::Counters& counters_;
  StreamSocket socket_;
  std::optional<Liveness> liveness_;
  std::string cause_;
  Nanoseconds ended_at_ = kNever;

  // The frame that is being sent: a stripe or a heartbeat.
  HeaderBytes header_{};
  std::size_t header_left_ = 0;
  std::size_t out_left_ = 0;
  uint32_t out_slot_ = 0;
  Progress out_;

  // The frame that is being received.
  HeaderBytes came_{};
  std::size_t came_bytes_ = 0;
  std::size_t in_left_ = 0;
  uint32_t in_slot_ = 0;
  Progress in_;
};

}  // namespace rdmacoll::tcp
