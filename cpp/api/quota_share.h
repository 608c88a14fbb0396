// A rank's share of the processor time that its control group may use.
#pragma once

#include <optional>

#include "base/world.h"

namespace rdmacoll {

// The time of how many cores the rank of `world` may use on average. `quota`: that of its control
// group; none: infinity. The ranks of a container share a quota. Ranks in containers of their own
// have other names of hosts.
double quota_share(const World& world, std::optional<double> quota);

}  // namespace rdmacoll
