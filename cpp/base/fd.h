// An owned file descriptor. Every descriptor of the engine is one of these, close-on-exec, and
// known to a process-wide list, so that a forked child can close them all: a child that keeps a
// socket open hides the death of its parent from the other ranks.
#pragma once

#include <utility>

namespace rdmacoll {

class Fd {
 public:
  Fd() = default;
  explicit Fd(int fd);
  Fd(Fd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Fd& operator=(Fd&& other) noexcept {
    if (this != &other) {
      reset();
      fd_ = std::exchange(other.fd_, -1);
    }
    return *this;
  }
  ~Fd() { reset(); }

  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }
  // Owns it no longer and leaves it open: for one that a library closes itself.
  void release();
  void reset();

 private:
  int fd_ = -1;
};

// Called by the child side of pthread_atfork: async-signal-safe, closes every live Fd.
void close_all_descriptors_in_child();
int open_descriptors();  // how many Fd objects hold one now; for tests and the state dump

}  // namespace rdmacoll
