// Data that is uneven, in a simulation: ranks whose data ends before the others' join.
#pragma once

#include "sim/dice.h"
#include "sim/script.h"

namespace rdmacoll {

// Adds phases to the script in which fewer and fewer ranks have data, and in the end all join.
void make_joins(Dice dice, Dice& variety, SimScript& script);
// Who does not come, or comes with something else, might have joined just as well: the script's
// fault would be another story.
bool spoils_joins(const SimScript& script);

}  // namespace rdmacoll
