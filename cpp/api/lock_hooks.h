// The hooks of operation.set_lock_hooks() in rdmacoll_c.h.
#pragma once

#include "engine/gil_release.h"

namespace rdmacoll {

extern GilReleaseHooks lock_hooks;

}  // namespace rdmacoll
