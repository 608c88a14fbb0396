// The door: listens on the job's addresses, lets in whoever proves to be a rank of the job.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/fd.h"
#include "bootstrap/handshake.h"
#include "bootstrap/lodger.h"
#include "bootstrap/sockets.h"

namespace rdmacoll {

class Reception {
 public:
  // `poller` is an epoll descriptor that is told of our sockets.
  explicit Reception(int poller) : poller_(poller) {}

  // One socket per address, each with a port of its own, and one Unix socket with a random name.
  Status open(const std::vector<SocketAddress>& addresses, const std::string& congestion = {});
  const std::vector<SocketAddress>& tcp() const { return tcp_; }
  const std::string& unix_name() const { return unix_name_; }
  // Any thread: who calls this world of the process is let in here, for as long as there is it.
  void take_in(const std::shared_ptr<Lodger>& lodger);

  // Callers that begin as at a rendezvous are sent to this socket, each as the number of its
  // descriptor: the process has one address for both.
  void pass_on(Fd socket) { rendezvous_ = std::move(socket); }

  // Accepts, goes on with every handshake and appends those who have passed. `credentials` stays
  // the same from call to call.
  void poll(const Credentials& credentials, Nanoseconds now, std::vector<Caller>& arrived);
  bool is_busy() const { return !guests_.empty(); }
  Nanoseconds next_deadline() const;
  // Why the last caller was sent away, or "".
  const std::string& last_refusal() const { return last_refusal_; }
  // Nobody could be let in for a while, for want of descriptors; last_refusal() says it.
  bool is_starved(Nanoseconds now) const {
    return starved_since_ != kNever && now - starved_since_ >= kShortagePatience;
  }

 private:
  struct Listener {
    Fd socket;
    bool is_unix = false;
  };
  struct Guest {
    Fd socket;
    bool over_unix = false;
    Nanoseconds speaks_by = kNever;  // a silent one has less time than a handshake
    Handshake handshake;
    std::vector<std::shared_ptr<Lodger>> lodgers;  // shared with their worlds, which may end first
  };

  Status add_listener(const Endpoint& endpoint);
  void make_room(const Credentials& credentials);
  // Whether the caller goes elsewhere, or may yet.
  bool is_for_rendezvous(Guest& guest);
  void accept_from(const Listener& listener, const Credentials& credentials, Nanoseconds now);
  std::vector<std::shared_ptr<Lodger>> lodgers();
  void turn_away(const Listener& listener, int error, Nanoseconds now);

  int poller_;
  Nanoseconds starved_since_ = kNever;
  Fd spare_;  // given up for a moment when there are no descriptors, to hang up on a caller
  std::vector<Listener> listeners_;
  std::vector<SocketAddress> tcp_;
  std::string unix_name_;
  Fd rendezvous_;
  std::vector<Guest> guests_;  // not authenticated yet, oldest first
  std::string last_refusal_;
  std::mutex mutex_;
  std::vector<std::weak_ptr<Lodger>> lodgers_;  // their worlds have them
};

}  // namespace rdmacoll
