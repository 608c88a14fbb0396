// Connects ranks through stream sockets: TCP between nodes, or when no better transport is allowed.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/fd.h"
#include "base/world.h"
#include "transport/socket_transport.h"
#include "transport/tcp/tcp_peer.h"

namespace rdmacoll {

struct TcpOptions {
  // After this many bytes of one transfer, the next transfer to the same peer has a turn.
  uint64_t chunk_bytes = 4 * 1024 * 1024;
  tcp::Streams streams;
};

class TcpTransport final : public SocketTransport {
 public:
  TcpTransport(const World& world, const Clock& clock, Nanoseconds peer_timeout,
               TcpOptions options = {});
  // If this is an error, make no other call.
  const Status& opened() const { return opened_; }

  // Ignored if the peer is connected already or has failed.
  void adopt(int peer, Fd socket, bool is_dialer = true) override;
  int streams() const override { return streams_.count; }
  // Ignored if that stream exists already or the peer is not connected.
  void adopt_stream(int peer, int number, Fd socket) override;
  bool has_stream(int peer, int number) const override { return peer_at(peer).has_stream(number); }
  std::string stream_failure(int number, const std::string& cause) const override;
  std::string missing_streams(int opened) const override;

  bool is_connected(int peer) const override;
  Reach reach(int peer) const override;
  Status post_control(int peer, std::span<const std::byte> message) override;
  Status post_send(const Transfer& transfer) override;
  Status post_recv(const Transfer& transfer) override;
  bool poll(Sink& sink) override;
  bool arm() override;
  int wait_handle() const override { return epoll_.get(); }
  Nanoseconds next_deadline() const override;
  void fail(int peer) override;
  bool needs_poll() const override;
  bool flushed() const override;
  Counters counters() const override { return counters_; }

 private:
  Status watch_stream(int socket, tcp::StreamSocket& stream);
  void give_up(int peer, const std::string& cause);
  tcp::TcpPeer& peer_at(int peer);
  const tcp::TcpPeer& peer_at(int peer) const;
  void take_signals();
  void drop_inactive();

  const Clock& clock_;
  Nanoseconds peer_timeout_;
  int rank_;
  tcp::Streams streams_;
  Counters counters_;
  Fd epoll_;
  bool asks_ = true;  // whether the last poll asked epoll
  Status opened_;
  std::vector<std::unique_ptr<tcp::TcpPeer>> peers_;  // by peer; null for ourselves
  std::vector<tcp::TcpPeer*> active_;                 // connected ones
  std::vector<int> arrived_;                          // peers whose `connected` is to be reported
  std::vector<std::pair<int, std::string>> failed_early_;  // peers to be reported as failed
};

}  // namespace rdmacoll
