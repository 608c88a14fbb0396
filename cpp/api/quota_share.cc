#include "api/quota_share.h"

#include <algorithm>
#include <limits>

namespace rdmacoll {

double quota_share(const World& world, std::optional<double> quota) {
  if (!quota) return std::numeric_limits<double>::infinity();
  const Member& own = world.members[static_cast<std::size_t>(world.rank)];
  const auto ranks = std::ranges::count_if(world.members, [&](const Member& other) {
    return other.machine == own.machine && other.host == own.host;
  });
  return *quota / static_cast<double>(ranks);
}

}  // namespace rdmacoll
