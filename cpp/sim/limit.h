// Limits the work of a simulation.
#pragma once

#include "sim/script.h"

namespace rdmacoll {

// Enlarges segments that would be too many. Otherwise a few seeds, with large tensors in small
// segments, would take most of the time.
void limit_segments(SimScript& script);

}  // namespace rdmacoll
