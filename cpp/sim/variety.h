// Rare variations of programs, which take other paths in the engine.
#pragma once

#include <vector>

#include "sim/random_source.h"
#include "sim/script.h"

namespace rdmacoll {

// Gives some operations another dtype, some sums the operator product, and some alltoalls equal
// parts. Small alltoalls with equal parts use Bruck's algorithm.
void vary(RandomSource& random, std::vector<SimOperation>& phase);

}  // namespace rdmacoll
