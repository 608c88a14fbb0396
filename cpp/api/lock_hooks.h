// The hooks of operation.set_lock_hooks() in rdmacoll_c.h.
#pragma once

#include "engine/long_wait.h"

namespace rdmacoll {

extern LongWaitHooks lock_hooks;

}  // namespace rdmacoll
