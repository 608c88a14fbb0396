// An eventfd: a bell that any thread or process may ring, and that stays rung until it is silenced.
#pragma once

#include "base/fd.h"

namespace rdmacoll {

// Invalid, with errno, when there is no descriptor left. Non-blocking, closed on exec.
Fd make_event();
void ring(const Fd& event);
void silence(const Fd& event);

}  // namespace rdmacoll
