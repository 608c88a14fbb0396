#include "bootstrap/dial.h"

#include <sys/epoll.h>

#include <algorithm>
#include <cerrno>

#include "base/system_error.h"
#include "base/text.h"

namespace rdmacoll {
namespace {

// An address that does not answer must not use up the time of the next one.
constexpr Nanoseconds kConnectTimeout = 3 * kSecond;
constexpr Nanoseconds kFirstPause = 10 * kMillisecond;
constexpr Nanoseconds kLongestPause = kSecond;

}  // namespace

Dial::Dial(int peer, int stream, std::vector<Endpoint> endpoints, const Credentials& credentials,
           int poller, Nanoseconds now, Nanoseconds deadline)
    : peer_(peer),
      stream_(stream),
      endpoints_(std::move(endpoints)),
      errors_(endpoints_.size()),
      credentials_(credentials),
      poller_(poller),
      started_at_(now),
      deadline_(deadline),
      wake_at_(now),
      pause_(kFirstPause) {}

Dial::Outcome Dial::advance(Nanoseconds now) {
  if (endpoints_.empty() || refused_) return Outcome::failed;
  if (now >= deadline_) {
    if (socket_) attempt_failed("no answer", now);
    return Outcome::failed;
  }
  if (!socket_ && now >= wake_at_) start(now);
  if (!socket_) return Outcome::pending;
  if (!handshake_) {
    const int error = connect_error(socket_.get());
    if (error == EINPROGRESS) {
      if (now >= wake_at_) attempt_failed("no answer", now);
      return Outcome::pending;
    }
    if (error != 0) {
      attempt_failed(error_text(error), now);
      return Outcome::pending;
    }
    if (endpoints_[next_].family() == AF_UNIX && !is_same_user(socket_.get())) {
      attempt_failed("another user listens there", now);
      return Outcome::pending;
    }
    handshake_ = Handshake::dial(credentials_, Role::data, peer_, now, stream_);
  }
  const Status status = handshake_->advance(socket_.get(), now);
  if (!status.ok()) {
    path_faults_ = handshake_->has_path_fault() ? path_faults_ + 1 : 0;
    // One path fault is not final, since another address may lie on another path.
    refused_ = handshake_->is_refused() || path_faults_ >= endpoints_.size();
    attempt_failed(status.message(), now);
    return refused_ ? Outcome::failed : Outcome::pending;
  }
  return handshake_->done() ? Outcome::connected : Outcome::pending;
}

void Dial::start(Nanoseconds now) {
  const int error = start_connect(endpoints_[next_], socket_);
  if (is_shortage(error)) return lack(error_text(error), now);
  if (error != 0) {
    lacking_since_ = kNever;
    return attempt_failed(error_text(error), now);
  }
  // Edge-triggered: each advance() goes on until the socket would block.
  const Status watched = watch(poller_, socket_.get(),
                               {.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, .data = {}});
  if (!watched.ok()) return lack(watched.message(), now);
  lacking_since_ = kNever;
  wake_at_ = now + kConnectTimeout;
}

void Dial::lack(const std::string& what, Nanoseconds now) {
  lacking_since_ = std::min(lacking_since_, now);
  attempt_failed(what, now);
  refused_ = now - lacking_since_ >= kShortageTimeout;
}

void Dial::attempt_failed(const std::string& why, Nanoseconds now) {
  errors_[next_] = cat(endpoints_[next_].text, ": ", why);
  handshake_.reset();
  socket_.reset();
  wake_at_ = now;
  next_ = (next_ + 1) % endpoints_.size();
  if (next_ != 0) return;
  wake_at_ = now + pause_;
  pause_ = std::min(pause_ * 2, kLongestPause);
}

Fd Dial::take_socket() {
  ::epoll_ctl(poller_, EPOLL_CTL_DEL, socket_.get(), nullptr);
  return std::move(socket_);
}

std::string Dial::cause() const {
  if (endpoints_.empty()) return "it has no address that this rank could call";
  std::vector<std::string> errors;
  std::copy_if(errors_.begin(), errors_.end(), std::back_inserter(errors),
               [](const std::string& error) { return !error.empty(); });
  const std::string list = errors.empty() ? "no answer" : join(errors, "; ");
  if (refused_) return list;
  return cat("no connection after ",
             static_cast<double>((deadline_ - started_at_) / kMillisecond) / 1000, " s: ", list);
}

std::string Dial::state() const {
  std::vector<std::string> states;
  for (std::size_t i = 0; i < endpoints_.size(); ++i) {
    states.push_back(errors_[i].empty() ? cat(endpoints_[i].text, ": no answer") : errors_[i]);
  }
  return join(states, ", ");
}

Nanoseconds Dial::next_deadline() const {
  return std::min(handshake_ ? handshake_->deadline() : wake_at_, deadline_);
}

}  // namespace rdmacoll
