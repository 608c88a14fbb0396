// A socket of a stream, and what epoll has said of it.
#pragma once

#include <cstdint>
#include <string>

#include "base/fd.h"
#include "base/status.h"

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

// Whether the kernel lets this process send by this congestion control.
Status try_congestion_control(const std::string& name);
// Has a socket send by it. One of another family than TCP's has none.
void set_congestion_control(int socket, const std::string& name);

}  // namespace rdmacoll::tcp
