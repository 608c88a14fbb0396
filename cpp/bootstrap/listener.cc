#include "bootstrap/listener.h"

#include <sys/epoll.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <string_view>

#include "base/event.h"
#include "base/system_error.h"
#include "base/text.h"

namespace rdmacoll {
namespace {

// A host may have hundreds of addresses (one per container). This many are enough for its peers.
constexpr std::size_t kSocketsMax = 32;

// Unknown callers that hold a connection open cost a descriptor each. If there are more than this
// beyond the ranks, the one that has proved least is closed. A rank that is closed calls again.
constexpr std::size_t kUnknownCallersMax = 64;
// The longest silence of a new caller. Ranks speak as soon as they are connected.
constexpr Nanoseconds kSilenceMax = 3 * kSecond;
// The first bytes of a caller at a rendezvous (CALL in rdmacoll/_base/channel.py).
constexpr std::string_view kRendezvousCall = "rdmacol?";

constexpr int kAcceptsPerPoll = 64;

std::string random_name() {
  static constexpr char kHex[] = "0123456789abcdef";
  std::array<std::byte, 16> random;
  fill_random(random);
  std::string name = "rdmacoll-";
  for (const std::byte byte : random) {
    name += kHex[std::to_integer<int>(byte) >> 4];
    name += kHex[std::to_integer<int>(byte) & 15];
  }
  return name;
}

bool has_sent(const Fd& socket) {
  char byte = 0;
  return ::recv(socket.get(), &byte, 1, MSG_PEEK | MSG_DONTWAIT) > 0;
}

}  // namespace

Status Listener::add_socket(const Endpoint& endpoint) {
  Fd socket;
  RC_RETURN_IF_ERROR(listen_at(endpoint, socket));
  RC_RETURN_IF_ERROR(watch(poller_, socket.get(), {.events = EPOLLIN, .data = {}}));
  sockets_.push_back({std::move(socket), endpoint.family() == AF_UNIX});
  return {};
}

Status Listener::open(const std::vector<SocketAddress>& addresses, const std::string& congestion) {
  unix_name_ = random_name();
  spare_ = make_event();
  if (!spare_) return system_error("eventfd", errno);
  RC_RETURN_IF_ERROR(add_socket(unix_endpoint(unix_name_)));
  Status last;
  for (std::size_t i = 0; i < addresses.size(); ++i) {
    if (i >= kSocketsMax && i + 1 < addresses.size()) continue;  // the last is loopback: keep it
    last = add_socket(tcp_endpoint(addresses[i], congestion));
    if (last.code() == Code::invalid) return last;  // a limit, which the others would meet, too
    // An address may be unusable just now (IPv6 while it is tentative). The others suffice.
    if (last.ok()) tcp_.push_back(local_address(sockets_.back().socket.get()));
  }
  return tcp_.empty() ? last : Status();
}

void Listener::accept_from(const ListeningSocket& from, const Credentials& credentials,
                           Nanoseconds now) {
  for (int i = 0; i < kAcceptsPerPoll; ++i) {
    Fd socket(::accept4(from.socket.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!socket) {
      const int error = errno;
      if (error == EINTR || error == ECONNABORTED) continue;
      if (is_shortage(error)) reject_one(from, error, now);
      return;
    }
    starved_since_ = kNever;
    if (from.is_unix && !is_same_user(socket.get())) {
      last_refusal_ = "a process of another user";
      continue;
    }
    close_one_if_full(credentials);
    const Status watched = watch(poller_, socket.get(),
                                 {.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, .data = {}});
    if (!watched.ok()) {
      last_refusal_ = watched.message();
      continue;
    }
    std::vector<std::shared_ptr<SecondaryWorld>> worlds = secondary_worlds();
    std::vector<const Credentials*> others;
    for (const auto& world : worlds) others.push_back(&world->credentials());
    pending_.push_back({std::move(socket), from.is_unix, now + kSilenceMax,
                        Handshake::listen(credentials, Role::data, now, std::move(others)),
                        std::move(worlds)});
  }
}

void Listener::close_one_if_full(const Credentials& credentials) {
  const auto ranks = static_cast<std::size_t>(credentials.size) * credentials.streams;
  if (pending_.size() < kUnknownCallersMax + ranks) return;
  auto least = std::find_if(pending_.begin(), pending_.end(), [](const PendingCaller& pending) {
    return !pending.handshake.has_heard() && !has_sent(pending.socket);
  });
  if (least == pending_.end()) {
    least = std::find_if(pending_.begin(), pending_.end(), [](const PendingCaller& pending) {
      return !pending.handshake.is_known();
    });
  }
  pending_.erase(least == pending_.end() ? pending_.begin() : least);
}

bool Listener::is_for_rendezvous(PendingCaller& pending) {
  if (!rendezvous_ || pending.over_unix || pending.handshake.has_heard()) return false;
  std::array<char, kRendezvousCall.size()> begin{};
  const ssize_t count =
      ::recv(pending.socket.get(), begin.data(), begin.size(), MSG_PEEK | MSG_DONTWAIT);
  if (count <= 0) return false;
  const std::string_view said(begin.data(), static_cast<std::size_t>(count));
  if (said != kRendezvousCall.substr(0, said.size())) return false;
  if (said.size() < kRendezvousCall.size()) return true;
  ::epoll_ctl(poller_, EPOLL_CTL_DEL, pending.socket.get(), nullptr);
  const int number = pending.socket.get();
  if (::send(rendezvous_.get(), &number, sizeof number, MSG_NOSIGNAL | MSG_DONTWAIT) > 0) {
    pending.socket.release();
  } else {
    pending.socket.reset();
  }
  return true;
}

void Listener::add_world(const std::shared_ptr<SecondaryWorld>& world) {
  const std::lock_guard hold(mutex_);
  secondary_worlds_.push_back(world);
}

std::vector<std::shared_ptr<SecondaryWorld>> Listener::secondary_worlds() {
  const std::lock_guard hold(mutex_);
  std::erase_if(secondary_worlds_, [](const auto& world) { return world.expired(); });
  std::vector<std::shared_ptr<SecondaryWorld>> present;
  for (const auto& world : secondary_worlds_) {
    if (auto one = world.lock()) present.push_back(std::move(one));
  }
  return present;
}

// Accepts a caller and closes the connection. A caller that stayed in the queue would wake the
// engine again and again.
void Listener::reject_one(const ListeningSocket& from, int error, Nanoseconds now) {
  last_refusal_ = error_text(error);
  starved_since_ = std::min(starved_since_, now);
  spare_.reset();
  Fd(::accept4(from.socket.get(), nullptr, nullptr, SOCK_CLOEXEC)).reset();
  spare_ = make_event();
}

void Listener::poll(const Credentials& credentials, Nanoseconds now, std::vector<Caller>& arrived) {
  for (const ListeningSocket& from : sockets_) accept_from(from, credentials, now);
  std::erase_if(pending_, [&](PendingCaller& pending) {
    if (is_for_rendezvous(pending)) return !pending.socket || now >= pending.first_byte_by;
    if (now >= pending.first_byte_by && !pending.handshake.has_heard() &&
        !has_sent(pending.socket)) {
      return true;
    }
    const Status status = pending.handshake.advance(pending.socket.get(), now);
    if (!status.ok()) {
      if (pending.handshake.has_heard()) last_refusal_ = status.message();
      return true;
    }
    if (!pending.handshake.done()) return false;
    ::epoll_ctl(poller_, EPOLL_CTL_DEL, pending.socket.get(), nullptr);
    Caller caller{pending.handshake.peer(), std::move(pending.socket), pending.over_unix,
                  pending.handshake.stream()};
    const Credentials& called = pending.handshake.credentials();
    const auto world =
        std::find_if(pending.worlds.begin(), pending.worlds.end(),
                     [&called](const auto& one) { return &one->credentials() == &called; });
    if (world != pending.worlds.end()) {
      (*world)->add_caller(std::move(caller));
    } else {
      arrived.push_back(std::move(caller));
    }
    return true;
  });
}

Nanoseconds Listener::next_deadline() const {
  Nanoseconds deadline = kNever;
  for (const PendingCaller& pending : pending_) {
    deadline = std::min(deadline, pending.handshake.has_heard() ? pending.handshake.deadline()
                                                                : pending.first_byte_by);
  }
  return deadline;
}

}  // namespace rdmacoll
