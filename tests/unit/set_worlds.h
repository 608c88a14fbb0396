// Process sets for tests.
#pragma once

#include <utility>

#include "base/set_world.h"
#include "base/text.h"
#include "base/world.h"

namespace rdmacoll {

// A set of `size` ranks on one node, as `rank` sees it. A server's rank is beyond them.
inline SetWorld set_world(int rank, int size) {
  World world{"job", 1, rank, {}};
  for (int other = 0; other < size; ++other) {
    world.members.push_back({cat("host", other), other, 0});
  }
  return SetWorld(std::move(world));
}

}  // namespace rdmacoll
