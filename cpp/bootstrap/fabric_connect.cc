// The connections of a Fabric: outgoing and incoming ones, and errors for peers without one.
#include <sys/epoll.h>

#include <algorithm>
#include <array>
#include <utility>

#include "base/text.h"
#include "bootstrap/fabric.h"

namespace rdmacoll {

void Fabric::connect(int peer) {
  RC_ASSERT(peer >= 0 && peer < world_.size() && peer != world_.rank, cat("rank ", peer));
  Peer& state = peers_[peer];
  if (state.state != State::idle) return;
  const Nanoseconds now = clock_.now();
  if (world_.rank < peer) {
    state.state = State::dialing;
    call(peer, 0, now);
  } else {
    state.state = State::awaiting;
    state.deadline = now + start_timeout_;
    ++waiting_;
  }
  signalled_ = true;
}

void Fabric::call(int peer, int stream, Nanoseconds now) {
  dials_.push_back(std::make_unique<Dial>(peer, stream, endpoints_of(peer), credentials_,
                                          connect_epoll_.get(), now, now + start_timeout_));
}

std::vector<Endpoint> Fabric::endpoints_of(int peer) const {
  if (meets_on_unix_socket(peer)) return {unix_endpoint(cards_[peer].unix_name)};
  std::vector<Endpoint> endpoints;
  const bool same_host = cards_[peer].node_key == card_.node_key;
  for (const SocketAddress& address :
       dial_order(cards_[peer].tcp, interface_addresses(), same_host)) {
    endpoints.push_back(tcp_endpoint(address, options_.config.tcp_congestion));
  }
  return endpoints;
}

bool Fabric::take_signals() {
  std::array<epoll_event, 64> events;
  return ::epoll_wait(connect_epoll_.get(), events.data(), static_cast<int>(events.size()), 0) > 0;
}

bool Fabric::connect_peers(Sink& sink) {
  const Nanoseconds now = clock_.now();
  const bool due = std::exchange(signalled_, false) || now >= next_connect_deadline();
  if (!take_signals() && !due) return false;
  bool moved = false;

  listener_->poll(credentials_, now, callers_);
  if (secondary_) secondary_->take_callers(callers_);
  for (Caller& caller : callers_) moved |= admit(std::move(caller), now);
  callers_.clear();

  std::vector<int> connected;  // peers whose further streams have yet to be called
  std::erase_if(dials_, [&](const std::unique_ptr<Dial>& dial) {
    const int peer = dial->peer();
    if (peers_[peer].state == State::failed) return true;
    switch (dial->advance(now)) {
      case Dial::Outcome::pending:
        return false;
      case Dial::Outcome::connected:
        if (dial->stream() == 0) connected.push_back(peer);
        hand_over(peer, dial->stream(), dial->take_socket(), true);
        break;
      case Dial::Outcome::failed:
        fail_peer(peer, failed_call(*dial), sink);
        break;
    }
    moved = true;
    return true;
  });
  for (const int peer : connected) {
    for (int stream = 1; stream < streams_of(peer); ++stream) call(peer, stream, now);
  }

  const std::string& refusal = listener_->last_refusal();
  const bool is_starved = listener_->is_starved(now);
  for (int peer = 0; waiting_ + missing_ > 0 && peer < world_.rank; ++peer) {
    const int missing = peers_[peer].missing;
    if (peers_[peer].state != State::awaiting && missing == 0) continue;
    if (!is_starved && now < peers_[peer].deadline) continue;
    const std::string what = missing == 0
                                 ? "it did not connect"
                                 : peers_[peer].route->missing_streams(streams_of(peer) - missing);
    fail_peer(
        peer,
        is_starved
            ? own_fault("let it in", refusal)
            : cat(what, " to this rank within ", options_.config.start_timeout_s, " s",
                  refusal.empty() ? "" : cat(" (the last caller that was refused: ", refusal, ")")),
        sink);
    moved = true;
  }
  return moved;
}

// Returns false if the caller is not expected. Its connection is then closed.
bool Fabric::admit(Caller caller, Nanoseconds now) {
  const int peer = caller.peer;
  const State state = peers_[peer].state;
  if (peer >= world_.rank || caller.over_unix != meets_on_unix_socket(peer)) return false;
  if (caller.stream > 0) {
    if (caller.stream >= streams_of(peer) || state == State::failed) return false;
    if (state == State::adopted || state == State::connected) {
      hand_over(peer, caller.stream, std::move(caller.socket), false);
    } else {
      // Its first stream is still on the way. A repeated call for a stream replaces the earlier
      // one.
      std::erase_if(early_streams_, [&caller](const Caller& one) {
        return one.peer == caller.peer && one.stream == caller.stream;
      });
      early_streams_.push_back(std::move(caller));
    }
    return true;
  }
  if (state != State::idle && state != State::awaiting) return false;
  hand_over(peer, 0, std::move(caller.socket), false);
  peers_[peer].deadline = now + start_timeout_;
  peers_[peer].missing = streams_of(peer) - 1;
  missing_ += peers_[peer].missing;
  for (Caller& one : early_streams_) {
    if (one.peer == peer) hand_over(peer, one.stream, std::move(one.socket), false);
  }
  std::erase_if(early_streams_, [peer](const Caller& one) { return one.peer == peer; });
  return true;
}

int Fabric::streams_of(int peer) const { return peers_[peer].route->streams(); }

std::string Fabric::waiting() const {
  std::vector<std::string> lines;
  for (const auto& dial : dials_) {
    lines.push_back(cat(world_.describe(dial->peer()), " to let it in at ", dial->state()));
  }
  for (int peer = 0; peer < static_cast<int>(peers_.size()); ++peer) {
    const bool lacks_streams = peers_[static_cast<std::size_t>(peer)].missing > 0;
    if (peers_[static_cast<std::size_t>(peer)].state != State::awaiting && !lacks_streams) continue;
    std::vector<std::string> places;
    if (meets_on_unix_socket(peer)) {
      places.emplace_back("its Unix socket");
    } else {
      for (const SocketAddress& address : card_.tcp) {
        if (!address.is_loopback()) places.push_back(address.text());
      }
    }
    lines.push_back(cat(world_.describe(peer), " to call it at ", join(places, ", "),
                        lacks_streams ? " with all streams" : ""));
  }
  return join(lines, "; ");
}

std::string Fabric::failed_call(const Dial& dial) const {
  std::string cause = dial.is_own_fault() ? own_fault("call it", dial.cause()) : dial.cause();
  if (dial.stream() == 0) return cause;
  return peers_[dial.peer()].route->stream_failure(dial.stream(), cause);
}

Nanoseconds Fabric::next_connect_deadline() const {
  Nanoseconds deadline = listener_->next_deadline();
  for (const auto& dial : dials_) deadline = std::min(deadline, dial->next_deadline());
  if (waiting_ + missing_ > 0) {
    for (const Peer& peer : peers_) {
      if (peer.state == State::awaiting || peer.missing > 0)
        deadline = std::min(deadline, peer.deadline);
    }
  }
  return deadline;
}

void Fabric::hand_over(int peer, int stream, Fd socket, bool dialer) {
  ++handshakes_;
  SocketTransport& route = *peers_[peer].route;
  if (stream > 0) {
    if (peers_[peer].missing > 0 && !route.has_stream(peer, stream)) {
      --peers_[peer].missing;
      --missing_;
    }
    return route.adopt_stream(peer, stream, std::move(socket));
  }
  set_state(peer, State::adopted);
  route.adopt(peer, std::move(socket), dialer);
}

// The peers hear this cause as well, so it names this rank.
std::string Fabric::own_fault(std::string_view what, const std::string& cause) const {
  return cat(world_.describe(world_.rank), " cannot ", what, ": ", cause);
}

void Fabric::fail_peer(int peer, const std::string& cause, Sink& sink) {
  const State state = peers_[peer].state;
  if (state == State::adopted || state == State::connected) peers_[peer].route->fail(peer);
  set_state(peer, State::failed);
  sink.peer_failed(peer, cause);
}

void Fabric::set_state(int peer, State state) {
  if (peers_[peer].state == State::awaiting) --waiting_;
  if (state == State::failed) {
    missing_ -= std::exchange(peers_[peer].missing, 0);
    std::erase_if(early_streams_, [peer](const Caller& one) { return one.peer == peer; });
  }
  peers_[peer].state = state;
  peers_[peer].connected = state == State::connected ? peers_[peer].route : nullptr;
}

}  // namespace rdmacoll
