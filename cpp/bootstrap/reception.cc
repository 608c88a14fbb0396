#include "bootstrap/reception.h"

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
constexpr std::size_t kListenersMax = 32;

// Strangers that hold a connection open cost a descriptor each. If there are more than this beyond
// the ranks, the one that has shown least is closed. A rank that is closed calls again.
constexpr std::size_t kStrangersMax = 64;
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

bool has_spoken(const Fd& socket) {
  char byte = 0;
  return ::recv(socket.get(), &byte, 1, MSG_PEEK | MSG_DONTWAIT) > 0;
}

}  // namespace

Status Reception::add_listener(const Endpoint& endpoint) {
  Fd socket;
  RC_RETURN_IF_ERROR(listen_at(endpoint, socket));
  RC_RETURN_IF_ERROR(watch(poller_, socket.get(), {.events = EPOLLIN, .data = {}}));
  listeners_.push_back({std::move(socket), endpoint.family() == AF_UNIX});
  return {};
}

Status Reception::open(const std::vector<SocketAddress>& addresses, const std::string& congestion) {
  unix_name_ = random_name();
  spare_ = make_event();
  if (!spare_) return system_error("eventfd", errno);
  RC_RETURN_IF_ERROR(add_listener(unix_endpoint(unix_name_)));
  Status last;
  for (std::size_t i = 0; i < addresses.size(); ++i) {
    if (i >= kListenersMax && i + 1 < addresses.size()) continue;  // the last is loopback: keep it
    last = add_listener(tcp_endpoint(addresses[i], congestion));
    if (last.code() == Code::invalid) return last;  // a limit, which the others would meet, too
    // An address may be unusable just now (IPv6 while it is tentative). The others suffice.
    if (last.ok()) tcp_.push_back(local_address(listeners_.back().socket.get()));
  }
  return tcp_.empty() ? last : Status();
}

void Reception::accept_from(const Listener& listener, const Credentials& credentials,
                            Nanoseconds now) {
  for (int i = 0; i < kAcceptsPerPoll; ++i) {
    Fd socket(::accept4(listener.socket.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!socket) {
      const int error = errno;
      if (error == EINTR || error == ECONNABORTED) continue;
      if (is_shortage(error)) turn_away(listener, error, now);
      return;
    }
    starved_since_ = kNever;
    if (listener.is_unix && !is_same_user(socket.get())) {
      last_refusal_ = "a process of another user";
      continue;
    }
    make_room(credentials);
    const Status watched = watch(poller_, socket.get(),
                                 {.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, .data = {}});
    if (!watched.ok()) {
      last_refusal_ = watched.message();
      continue;
    }
    std::vector<std::shared_ptr<Lodger>> lodgers = this->lodgers();
    std::vector<const Credentials*> others;
    for (const auto& lodger : lodgers) others.push_back(&lodger->credentials());
    guests_.push_back({std::move(socket), listener.is_unix, now + kSilenceMax,
                       Handshake::listen(credentials, Role::data, now, std::move(others)),
                       std::move(lodgers)});
  }
}

void Reception::make_room(const Credentials& credentials) {
  const auto ranks = static_cast<std::size_t>(credentials.size) * credentials.streams;
  if (guests_.size() < kStrangersMax + ranks) return;
  auto least = std::find_if(guests_.begin(), guests_.end(), [](const Guest& guest) {
    return !guest.handshake.has_heard() && !has_spoken(guest.socket);
  });
  if (least == guests_.end()) {
    least = std::find_if(guests_.begin(), guests_.end(),
                         [](const Guest& guest) { return !guest.handshake.is_known(); });
  }
  guests_.erase(least == guests_.end() ? guests_.begin() : least);
}

bool Reception::is_for_rendezvous(Guest& guest) {
  if (!rendezvous_ || guest.over_unix || guest.handshake.has_heard()) return false;
  std::array<char, kRendezvousCall.size()> begin{};
  const ssize_t count =
      ::recv(guest.socket.get(), begin.data(), begin.size(), MSG_PEEK | MSG_DONTWAIT);
  if (count <= 0) return false;
  const std::string_view said(begin.data(), static_cast<std::size_t>(count));
  if (said != kRendezvousCall.substr(0, said.size())) return false;
  if (said.size() < kRendezvousCall.size()) return true;
  ::epoll_ctl(poller_, EPOLL_CTL_DEL, guest.socket.get(), nullptr);
  const int number = guest.socket.get();
  if (::send(rendezvous_.get(), &number, sizeof number, MSG_NOSIGNAL | MSG_DONTWAIT) > 0) {
    guest.socket.release();
  } else {
    guest.socket.reset();
  }
  return true;
}

void Reception::take_in(const std::shared_ptr<Lodger>& lodger) {
  const std::lock_guard hold(mutex_);
  lodgers_.push_back(lodger);
}

std::vector<std::shared_ptr<Lodger>> Reception::lodgers() {
  const std::lock_guard hold(mutex_);
  std::erase_if(lodgers_, [](const auto& lodger) { return lodger.expired(); });
  std::vector<std::shared_ptr<Lodger>> present;
  for (const auto& lodger : lodgers_) {
    if (auto one = lodger.lock()) present.push_back(std::move(one));
  }
  return present;
}

// Accepts a caller and hangs up. A caller that stayed in the queue would wake the engine again and
// again.
void Reception::turn_away(const Listener& listener, int error, Nanoseconds now) {
  last_refusal_ = error_text(error);
  starved_since_ = std::min(starved_since_, now);
  spare_.reset();
  Fd(::accept4(listener.socket.get(), nullptr, nullptr, SOCK_CLOEXEC)).reset();
  spare_ = make_event();
}

void Reception::poll(const Credentials& credentials, Nanoseconds now,
                     std::vector<Caller>& arrived) {
  for (const Listener& listener : listeners_) accept_from(listener, credentials, now);
  std::erase_if(guests_, [&](Guest& guest) {
    if (is_for_rendezvous(guest)) return !guest.socket || now >= guest.speaks_by;
    if (now >= guest.speaks_by && !guest.handshake.has_heard() && !has_spoken(guest.socket)) {
      return true;
    }
    const Status status = guest.handshake.advance(guest.socket.get(), now);
    if (!status.ok()) {
      if (guest.handshake.has_heard()) last_refusal_ = status.message();
      return true;
    }
    if (!guest.handshake.done()) return false;
    ::epoll_ctl(poller_, EPOLL_CTL_DEL, guest.socket.get(), nullptr);
    Caller caller{guest.handshake.peer(), std::move(guest.socket), guest.over_unix,
                  guest.handshake.stream()};
    const Credentials& called = guest.handshake.credentials();
    const auto lodger =
        std::find_if(guest.lodgers.begin(), guest.lodgers.end(),
                     [&called](const auto& one) { return &one->credentials() == &called; });
    if (lodger != guest.lodgers.end()) {
      (*lodger)->let_in(std::move(caller));
    } else {
      arrived.push_back(std::move(caller));
    }
    return true;
  });
}

Nanoseconds Reception::next_deadline() const {
  Nanoseconds deadline = kNever;
  for (const Guest& guest : guests_) {
    deadline = std::min(deadline,
                        guest.handshake.has_heard() ? guest.handshake.deadline() : guest.speaks_by);
  }
  return deadline;
}

}  // namespace rdmacoll
