// Ranks that were set or built differently would compute different things, or hang. So before any
// connection they compare what must be equal.
#pragma once

#include <vector>

#include "base/status.h"
#include "bootstrap/card.h"

namespace rdmacoll {

// By rank. The error (ConfigError) lists every difference with each rank's value:
//   RDMACOLL_ORDER: ranks 0, 2: run; rank 1: canonical
// `numbers`: what it calls the ranks; empty: by their places.
Status compare_fingerprints(const std::vector<Card>& cards, const std::vector<int>& numbers = {});

}  // namespace rdmacoll
