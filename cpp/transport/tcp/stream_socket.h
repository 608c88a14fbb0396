// A socket of a stream, and what epoll has said of it.
#pragma once

#include <cstdint>

#include "base/fd.h"

namespace rdmacoll::tcp {

struct StreamSocket {
  Fd fd;
  bool readable = false;  // epoll is edge-triggered, so what it said is kept here
  bool writable = false;
  bool hangup = false;

  void adopt(Fd socket);
  void signal(uint32_t events);
  // The kernel has nothing left that the peer has not acknowledged.
  bool is_acknowledged() const;
};

}  // namespace rdmacoll::tcp
