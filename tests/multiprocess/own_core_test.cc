// Ranks that wait for each other leave the same core.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <string>
#include <vector>

#include "allow_cores.h"
#include "bootstrap/numa.h"
#include "multiprocess/local_world.h"

namespace rdmacoll {
namespace {

// Both ranks begin on one core each time, until one has moved. A busy machine puts moves off.
TEST(RanksOnOneCore, part) {
  const std::vector<int> cores = allowed_cpus();
  if (cores.size() < 2) return;  // there is no other core
  LocalWorld world(2, "");
  if (HasFatalFailure()) return;
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  std::atomic<int> ranks_moved = 0;
  world.each([&](int rank) {
    Session& session = world.rank(rank);
    std::vector<float> values(1 << 16, 1.f);
    std::vector<float> has_moved(1, 0.f);
    while (has_moved.front() == 0) {
      allow_cores({cores.front()});
      ASSERT_TRUE(run(session, in_place(Kind::allreduce, Dtype::float32, values)).ok());
      allow_cores(cores);
      for (int i = 0; i < 10; ++i) {
        ASSERT_TRUE(run(session, in_place(Kind::allreduce, Dtype::float32, values)).ok());
      }
      ASSERT_EQ(allowed_cpus(), cores);
      const std::string metrics = session.metrics();
      ASSERT_NE(metrics.find("\"core_moves\": "), std::string::npos);
      const bool moved = metrics.find("\"core_moves\": 0,") == std::string::npos;
      has_moved.front() = moved || std::chrono::steady_clock::now() > end ? 1.f : 0.f;
      if (moved) ++ranks_moved;
      ASSERT_TRUE(run(session, in_place(Kind::allreduce, Dtype::float32, has_moved, "moved")).ok());
    }
  });
  EXPECT_GT(ranks_moved, 0);
}

}  // namespace
}  // namespace rdmacoll
