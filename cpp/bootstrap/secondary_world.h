// A secondary world that shares the process's listener, whose port a firewall may let through. The
// handshake routes each connection to the world it names.
#pragma once

#include <cerrno>
#include <iterator>
#include <mutex>
#include <utility>
#include <vector>

#include "base/event.h"
#include "base/system_error.h"
#include "bootstrap/handshake.h"

namespace rdmacoll {

struct Caller {
  int peer = -1;
  Fd socket;
  bool over_unix = false;
  int stream = 0;
};

class SecondaryWorld {
 public:
  explicit SecondaryWorld(Credentials credentials)
      : credentials_(std::move(credentials)), bell_(make_event()) {}
  Status opened() const { return bell_ ? Status() : system_error("eventfd", errno); }

  const Credentials& credentials() const { return credentials_; }
  // Readable when a caller has come.
  const Fd& bell() const { return bell_; }

  // Adds a caller that has proved to belong to this world. The thread of the listener calls it.
  void add_caller(Caller caller) {
    const std::lock_guard hold(mutex_);
    arrived_.push_back(std::move(caller));
    ring(bell_);
  }
  // Appends the callers that have come. The thread of this world calls it.
  void take_callers(std::vector<Caller>& arrived) {
    const std::lock_guard hold(mutex_);
    silence(bell_);
    std::move(arrived_.begin(), arrived_.end(), std::back_inserter(arrived));
    arrived_.clear();
  }

 private:
  const Credentials credentials_;
  const Fd bell_;
  std::mutex mutex_;
  std::vector<Caller> arrived_;
};

}  // namespace rdmacoll
