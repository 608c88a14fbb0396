// A transport for tests: TCP under another name. All that a new transport needs beside this folder
// is a row.
#pragma once

#include <memory>
#include <string>

#include "transport/provider.h"
#include "transport/tcp/provider.h"

namespace rdmacoll::toy {

inline constexpr std::string_view kName = "toy";

class ToyTransport final : public SocketTransport {
 public:
  explicit ToyTransport(std::unique_ptr<SocketTransport> tcp) : tcp_(std::move(tcp)) {}

  void adopt(int peer, Fd socket, bool is_dialer) override {
    tcp_->adopt(peer, std::move(socket), is_dialer);
  }
  bool is_connected(int peer) const override { return tcp_->is_connected(peer); }
  Reach reach(int peer) const override {
    Reach reach = tcp_->reach(peer);
    reach.transport = kName;
    return reach;
  }
  Status post_control(int peer, std::span<const std::byte> message) override {
    return tcp_->post_control(peer, message);
  }
  Status post_send(const Transfer& transfer) override { return tcp_->post_send(transfer); }
  Status post_recv(const Transfer& transfer) override { return tcp_->post_recv(transfer); }
  bool poll(Sink& sink) override { return tcp_->poll(sink); }
  bool arm() override { return tcp_->arm(); }
  int wait_handle() const override { return tcp_->wait_handle(); }
  Nanoseconds next_deadline() const override { return tcp_->next_deadline(); }
  void fail(int peer) override { tcp_->fail(peer); }
  bool needs_poll() const override { return tcp_->needs_poll(); }
  bool flushed() const override { return tcp_->flushed(); }
  Counters counters() const override { return tcp_->counters(); }

 private:
  std::unique_ptr<SocketTransport> tcp_;
};

// A rank can use it unless `obstacle` says why not. Two ranks reach each other if both have
// devices.
class ToyProvider final : public TransportProvider {
 public:
  explicit ToyProvider(TransportCard card) : card_(std::move(card)) {}

  std::string request(const Config&) const override { return card_.request; }
  TransportCard probe(const Config&, MemoryPool&) override { return card_; }
  std::string_view separation(const Candidate& a, const Candidate& b) const override {
    return a.card.has_devices && b.card.has_devices ? "" : "one of them has no toy";
  }
  Status open(const TransportOptions& options,
              std::unique_ptr<SocketTransport>& transport) override {
    std::unique_ptr<SocketTransport> tcp;
    RC_RETURN_IF_ERROR(TcpProvider().open(options, tcp));
    transport = std::make_unique<ToyTransport>(std::move(tcp));
    return {};
  }

 private:
  TransportCard card_;
};

inline TransportRow row(const TransportCard& card = {.has_devices = true}) {
  return {kName, "TOY", [card] { return std::make_unique<ToyProvider>(card); }};
}

}  // namespace rdmacoll::toy
