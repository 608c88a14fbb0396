// Sentences for failed system calls. If a limit of descriptors was reached, the sentence has the
// limit, the number in use, and the cure.
#pragma once

#include <sys/epoll.h>

#include <string>
#include <string_view>

#include "base/status.h"

namespace rdmacoll {

// "connection refused", from an errno. Thread-safe, unlike strerror.
std::string error_text(int error);

// Whether no descriptor was left, in the process or on the machine.
bool is_shortage(int error);

// A status "call: reason", from an errno. A limit that was reached is a ConfigError: the user can
// raise it.
Status system_error(std::string_view what, int error);

// Adds `fd` to an epoll set.
Status watch(int epoll, int fd, epoll_event event);

// Checks that this process can open `needed` more descriptors, by opening them for a moment.
Status check_descriptors(int needed);

}  // namespace rdmacoll
