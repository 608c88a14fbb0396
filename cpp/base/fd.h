// An owned file descriptor. Every descriptor of the engine is an Fd, is closed on exec, and stands
// in a process-wide list, so that a forked child can close them all. A child that kept a socket
// open would hide the death of its parent from the other ranks.
#pragma once

#include <cstddef>
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
  // Gives up the descriptor without closing it, for one that a library closes itself.
  void release();
  void reset();

 private:
  int fd_ = -1;
};

// Writes all bytes to a file, also where the kernel takes a part of them at a time: before a disk
// is full, or a limit reached. Returns false with errno set.
bool write_all(const Fd& file, const void* data, std::size_t bytes);

// Closes every live Fd. Called by the child side of pthread_atfork; async-signal-safe.
void close_all_descriptors_in_child();
int open_descriptors();  // the number of Fd objects that hold one; for tests

}  // namespace rdmacoll
