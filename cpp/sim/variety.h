// What is rarer in programs, and goes other ways in the engine.
#pragma once

#include <vector>

#include "sim/dice.h"
#include "sim/script.h"

namespace rdmacoll {

// Gives some operations another dtype, some sums the operator product, and some exchanges parts
// that are all as large, which go by Bruck's algorithm where they are small.
void vary(Dice& dice, std::vector<SimOperation>& phase);

}  // namespace rdmacoll
