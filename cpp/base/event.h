// An eventfd: a bell that any thread or process may ring. It stays rung until it is silenced.
#pragma once

#include "base/fd.h"

namespace rdmacoll {

// Returns an invalid Fd, with errno set, if no descriptor is left. Non-blocking, closed on exec.
Fd make_event();
void ring(const Fd& event);
void silence(const Fd& event);

}  // namespace rdmacoll
