// The listener: listens on the job's addresses, and lets in callers that prove to be ranks of the
// job.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/fd.h"
#include "bootstrap/handshake.h"
#include "bootstrap/secondary_world.h"
#include "bootstrap/sockets.h"

namespace rdmacoll {

class Listener {
 public:
  // `poller` is an epoll descriptor that watches the sockets.
  explicit Listener(int poller) : poller_(poller) {}

  // Opens one socket for each address, and one Unix socket with a random name.
  Status open(const std::vector<SocketAddress>& addresses, const std::string& congestion = {});
  const std::vector<SocketAddress>& tcp() const { return tcp_; }
  const std::string& unix_name() const { return unix_name_; }
  // Any thread may call it. Callers of this secondary world are let in here, for as long as that
  // exists.
  void add_world(const std::shared_ptr<SecondaryWorld>& world);

  // Callers that begin as at a rendezvous are sent to this socket, each as the number of its
  // descriptor. The process thus has one address for both.
  void forward_rendezvous_to(Fd socket) { rendezvous_ = std::move(socket); }

  // Accepts callers, advances every handshake, and appends the callers that have passed.
  // `credentials` stays the same from call to call.
  void poll(const Credentials& credentials, Nanoseconds now, std::vector<Caller>& arrived);
  bool is_busy() const { return !pending_.empty(); }
  Nanoseconds next_deadline() const;
  // Why the last caller was refused, or "".
  const std::string& last_refusal() const { return last_refusal_; }
  // Whether the listener has accepted no caller for kShortageTimeout, since the process has no free
  // descriptor. Then last_refusal() has the error.
  bool is_starved(Nanoseconds now) const {
    return starved_since_ != kNever && now - starved_since_ >= kShortageTimeout;
  }

 private:
  struct ListeningSocket {
    Fd socket;
    bool is_unix = false;
  };
  struct PendingCaller {
    Fd socket;
    bool over_unix = false;
    Nanoseconds first_byte_by = kNever;  // less than for a handshake
    Handshake handshake;
    std::vector<std::shared_ptr<SecondaryWorld>> worlds;  // their owners may end first
  };

  Status add_socket(const Endpoint& endpoint);
  void close_one_if_full(const Credentials& credentials);
  // Whether the caller is one for the rendezvous, or may still be.
  bool is_for_rendezvous(PendingCaller& pending);
  void accept_from(const ListeningSocket& from, const Credentials& credentials, Nanoseconds now);
  std::vector<std::shared_ptr<SecondaryWorld>> secondary_worlds();
  void reject_one(const ListeningSocket& from, int error, Nanoseconds now);

  int poller_;
  Nanoseconds starved_since_ = kNever;
  Fd spare_;  // closed for a moment, to hang up on a caller when no descriptor is left
  std::vector<ListeningSocket> sockets_;
  std::vector<SocketAddress> tcp_;
  std::string unix_name_;
  Fd rendezvous_;
  std::vector<PendingCaller> pending_;  // not authenticated yet, oldest first
  std::string last_refusal_;
  std::mutex mutex_;
  std::vector<std::weak_ptr<SecondaryWorld>> secondary_worlds_;  // owned by their worlds
};

}  // namespace rdmacoll
