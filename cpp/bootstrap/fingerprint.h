// Compares settings and builds before any connection. Ranks with different ones would compute
// different things, or hang.
#pragma once

#include <vector>

#include "base/status.h"
#include "bootstrap/card.h"

namespace rdmacoll {

// Compares the cards, by rank. `numbers`: the numbers of the ranks in sentences; empty: their
// places. The error (ConfigError) lists every difference with each rank's value:
//   RDMACOLL_ORDER: ranks 0, 2: run; rank 1: canonical
Status compare_fingerprints(const std::vector<Card>& cards, const std::vector<int>& numbers = {});

}  // namespace rdmacoll
