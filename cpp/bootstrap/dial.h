// One call to one peer. It tries the peer's addresses in turn, repeatedly, until the peer is
// authenticated or the time is over.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/fd.h"
#include "bootstrap/handshake.h"
#include "bootstrap/sockets.h"

namespace rdmacoll {

class Dial {
 public:
  // `credentials` must outlive the dial. `poller` is an epoll descriptor that watches its sockets.
  Dial(int peer, int stream, std::vector<Endpoint> endpoints, const Credentials& credentials,
       int poller, Nanoseconds now, Nanoseconds deadline);

  enum class Outcome : uint8_t { pending, connected, failed };
  Outcome advance(Nanoseconds now);

  int peer() const { return peer_; }
  int stream() const { return stream_; }
  Fd take_socket();           // after connected; no longer in the poller
  std::string cause() const;  // after failed: names addresses and errors
  std::string state() const;  // while pending: addresses, and the last error of each
  bool is_own_fault() const { return lacking_since_ != kNever; }  // this process has no descriptors
  Nanoseconds next_deadline() const;

 private:
  void start(Nanoseconds now);
  void attempt_failed(const std::string& why, Nanoseconds now);
  void lack(const std::string& what, Nanoseconds now);

  int peer_;
  int stream_;
  std::vector<Endpoint> endpoints_;
  std::vector<std::string> errors_;  // the last one of each endpoint
  const Credentials& credentials_;
  int poller_;
  Nanoseconds started_at_;
  Nanoseconds deadline_;

  std::size_t next_ = 0;  // the endpoint to try, or being tried
  Nanoseconds wake_at_;   // while trying: give up this endpoint; else: try the next
  Nanoseconds pause_;     // once all endpoints have failed
  Fd socket_;
  std::optional<Handshake> handshake_;  // once the socket is connected
  Nanoseconds lacking_since_ = kNever;  // since then attempts have found no descriptor
  bool refused_ = false;
  std::size_t path_faults_ = 0;  // path faults of the last attempts in succession
};

}  // namespace rdmacoll
