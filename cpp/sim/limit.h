// How much a simulation has to do.
#pragma once

#include "sim/script.h"

namespace rdmacoll {

// Makes segments larger where there would be too many: a few seeds, which repeat large tensors in
// small segments, would take most of the time of all.
void limit_segments(SimScript& script);

}  // namespace rdmacoll
