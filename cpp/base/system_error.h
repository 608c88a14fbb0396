// What the kernel refuses, as a sentence; where a limit of descriptors is reached, with the limit,
// how many are in use, and the cure.
#pragma once

#include <sys/epoll.h>

#include <string>
#include <string_view>

#include "base/status.h"

namespace rdmacoll {

// "connection refused", from an errno. Thread-safe, unlike strerror.
std::string error_text(int error);

// No descriptor was left, of the process or of the machine.
bool is_shortage(int error);

// "what: why", from an errno. A limit that was reached is a ConfigError: the user can raise it.
Status system_error(std::string_view what, int error);

// Adds `fd` to an epoll set.
Status watch(int epoll, int fd, epoll_event event);

// Whether this process may open so many more descriptors now, tried by opening them.
Status check_descriptors(int needed);

}  // namespace rdmacoll
