// Simulated joins: ranks whose data ends early join.
#pragma once

#include "sim/random_source.h"
#include "sim/script.h"

namespace rdmacoll {

// Adds phases to the script in which fewer and fewer ranks have data. At the end all ranks join.
void make_joins(RandomSource random, RandomSource& variety, SimScript& script);
// Whether the script's fault touches operations of a join. A rank that submits nothing, or
// something else, could equally have joined. So the fault would cause a different error.
bool affects_joins(const SimScript& script);

}  // namespace rdmacoll
