// A stream's socket, and the last events that epoll reported for it.
#pragma once

#include <cstdint>

#include "base/fd.h"

namespace rdmacoll::tcp {

struct StreamSocket {
  Fd fd;
  bool readable = false;  // epoll is edge-triggered, so its events are kept here
  bool writable = false;
  bool hangup = false;

  void adopt(Fd socket);
  void signal(uint32_t events);
  // Returns true if the peer has acknowledged all bytes that the kernel took.
  bool is_acknowledged() const;
};

}  // namespace rdmacoll::tcp
