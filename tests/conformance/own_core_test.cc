// Ranks of a node wait on cores of their own, if there are enough.
#include "transport/own_core.h"

#include <sched.h>

#include "allow_cores.h"
#include "bootstrap/numa.h"
#include "conformance/harness.h"

namespace rdmacoll::conformance {
namespace {

class Cores : public testing::TestWithParam<Backend> {};

TEST_P(Cores, are_shown_to_ranks_of_the_node_alone) {
  auto fleet = GetParam().make(3, kNeverSilent);
  const bool is_node = fleet->transports[0]->reach(1).transport == "shm";
  std::vector<int> seen;
  fleet->transports[0]->show_core(5, seen);
  EXPECT_EQ(seen, std::vector<int>());
  fleet->transports[1]->show_core(0, seen);
  EXPECT_EQ(seen, is_node ? std::vector<int>{5} : std::vector<int>());
  seen.clear();
  fleet->transports[0]->show_core(7, seen);
  EXPECT_EQ(seen, is_node ? std::vector<int>{0} : std::vector<int>());
  fleet->transports[0]->show_core(-1, seen);
  seen.clear();
  fleet->transports[1]->show_core(CPU_SETSIZE, seen);  // a number that no set has place for
  EXPECT_EQ(seen, std::vector<int>());
  fleet->transports[0]->show_core(7, seen);
  EXPECT_EQ(seen, std::vector<int>());
  // A rank that has ended waits nowhere.
  fleet->transports[1]->fail(0);
  seen.clear();
  fleet->transports[1]->show_core(0, seen);
  EXPECT_EQ(seen, std::vector<int>());
}

INSTANTIATE_TEST_SUITE_P(over, Cores, testing::ValuesIn(backends()), test_name);

// Two ranks of a node. The thread of the test is rank 0's, and may use the first cores of the
// machine.
class OwnCores : public testing::Test {
 protected:
  void SetUp() override {
    for (const Backend& one : backends()) {
      if (fleet_ == nullptr && one.name.starts_with("shm")) fleet_ = one.make(2, kNeverSilent);
    }
    ASSERT_NE(fleet_, nullptr);
    all_ = allowed_cpus();
    some_.assign(all_.begin(), all_.begin() + std::min<std::ptrdiff_t>(2, std::ssize(all_)));
    ASSERT_FALSE(some_.empty());
    allow_cores(some_);
  }
  void TearDown() override {
    if (!all_.empty()) allow_cores(all_);
  }
  // Returns where rank 0 waits.
  std::vector<int> show_peer_on(int core) {
    std::vector<int> others;
    fleet_->transports[1]->show_core(core, others);
    return others;
  }
  bool has_others() const { return some_.size() > 1; }

  std::unique_ptr<Fleet> fleet_;
  std::vector<int> all_, some_;
};

TEST_F(OwnCores, are_found_if_a_peer_waits_on_this_one) {
  OwnCore own(*fleet_->transports[0], steady_clock(), {});
  show_peer_on(some_.front());
  // The scheduler may move the thread before it looks.
  for (int turn = 0; turn < 1000 && own.moves() == 0; ++turn) {
    allow_cores({some_.front()});
    own.find();
    EXPECT_EQ(own.moves(), 0u) << "the affinity allows no other core";
    allow_cores(some_);
    own.find();
    EXPECT_EQ(allowed_cpus(), some_);
    if (!has_others()) break;
  }
  EXPECT_EQ(own.moves(), has_others() ? 1u : 0u);
}

// By this clock a move takes a millisecond.
TEST_F(OwnCores, are_found_again_after_ten_times_what_a_move_takes) {
  struct Steps final : Clock {
    Nanoseconds now() const override { return time += kMillisecond; }
    mutable Nanoseconds time = 0;
  } clock;
  OwnCore own(*fleet_->transports[0], clock, {});
  const auto meet = [&] {
    show_peer_on(some_.front());
    for (int turn = 0; turn < 1000; ++turn) {
      allow_cores({some_.front()});
      allow_cores(some_);
      if (::sched_getcpu() == some_.front()) break;
    }
    own.find();
  };
  meet();
  const uint64_t first = own.moves();
  const Nanoseconds moved_at = clock.time;
  ASSERT_EQ(first, has_others() ? 1u : 0u);
  for (int turn = 0; turn < 1000 && own.moves() == first; ++turn) meet();
  EXPECT_EQ(own.moves(), 2 * first);
  if (has_others()) {
    EXPECT_GE(clock.time, moved_at + 10 * kMillisecond);
  }
}

TEST_F(OwnCores, are_on_the_same_numa_node_if_there_is_one) {
  const std::vector<int> cores{some_.front(), some_.back()};
  for (const bool is_split : {false, true}) {
    const std::vector<std::vector<int>> nodes =
        is_split ? std::vector<std::vector<int>>{{cores[0]}, {cores[1]}}
                 : std::vector<std::vector<int>>{cores, {cores[1] + 1}};
    OwnCore own(*fleet_->transports[0], steady_clock(), nodes);
    show_peer_on(cores[0]);
    const OwnCore::Sleep sleep(own);
    EXPECT_EQ(allowed_cpus(), has_others() ? std::vector<int>{cores[1]} : some_);
  }
}

TEST_F(OwnCores, are_kept_if_peers_wait_elsewhere) {
  OwnCore own(*fleet_->transports[0], steady_clock(), {});
  own.find();
  show_peer_on(some_.back() + 1);
  own.find();
  EXPECT_EQ(own.moves(), 0u);
}

TEST_F(OwnCores, are_those_on_which_a_sleeper_wakes) {
  OwnCore own(*fleet_->transports[0], steady_clock(), {});
  show_peer_on(some_.back());
  {
    const OwnCore::Sleep sleep(own);
    EXPECT_EQ(allowed_cpus(), std::vector<int>{some_.front()});
  }
  EXPECT_EQ(allowed_cpus(), some_);
  // It leaves the core of a peer, and says where it is.
  allow_cores({some_.front()});
  EXPECT_EQ(show_peer_on(some_.front()).size(), 1u);
  allow_cores(some_);
  if (has_others()) {
    const uint64_t before = own.moves();
    const OwnCore::Sleep sleep(own);
    EXPECT_LE(own.moves(), before + 1);
    EXPECT_EQ(show_peer_on(some_.front()), std::vector<int>{some_.back()});
  }
  // An affinity stays that another thread has set meanwhile.
  if (has_others()) {
    const OwnCore::Sleep sleep(own);
    EXPECT_TRUE(sleep.is_bound());
    allow_cores({some_.front()});
  }
  EXPECT_EQ(allowed_cpus(), std::vector<int>{some_.front()});
  // Peers have all cores of the affinity, or none of them.
  allow_cores({some_.front()});
  for (const int core : {some_.front(), some_.back() + 1}) {
    show_peer_on(core);
    const OwnCore::Sleep sleep(own);
    EXPECT_EQ(allowed_cpus(), std::vector<int>{some_.front()});
  }
}

}  // namespace
}  // namespace rdmacoll::conformance
