// Ranks of a node wait on cores of their own, if there are enough.
#include "transport/own_core.h"

#include <sched.h>

#include "bootstrap/numa.h"
#include "conformance/harness.h"

namespace rdmacoll::conformance {
namespace {

cpu_set_t set_of(const std::vector<int>& cores) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int core : cores) CPU_SET(core, &set);
  return set;
}

void allow(const std::vector<int>& cores) {
  const cpu_set_t set = set_of(cores);
  ASSERT_EQ(::sched_setaffinity(0, sizeof set, &set), 0);
}

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
    allow(some_);
  }
  void TearDown() override { allow(all_); }
  void show_peer_on(int core) {
    std::vector<int> others;
    fleet_->transports[1]->show_core(core, others);
  }
  bool has_others() const { return some_.size() > 1; }

  std::unique_ptr<Fleet> fleet_;
  std::vector<int> all_, some_;
};

TEST_F(OwnCores, are_found_if_a_peer_waits_on_this_one) {
  OwnCore own(*fleet_->transports[0], steady_clock());
  show_peer_on(some_.front());
  // The scheduler may move the thread before it looks.
  for (int turn = 0; turn < 1000 && own.moves() == 0; ++turn) {
    allow({some_.front()});
    own.find();
    EXPECT_EQ(own.moves(), 0u) << "the affinity allows no other core";
    allow(some_);
    own.find();
    EXPECT_EQ(allowed_cpus(), some_);
    if (!has_others()) break;
  }
  EXPECT_EQ(own.moves(), has_others() ? 1u : 0u);
}

TEST_F(OwnCores, are_kept_if_peers_wait_elsewhere) {
  OwnCore own(*fleet_->transports[0], steady_clock());
  own.find();
  show_peer_on(some_.back() + 1);
  own.find();
  EXPECT_EQ(own.moves(), 0u);
}

TEST_F(OwnCores, are_those_on_which_a_sleeper_wakes) {
  OwnCore own(*fleet_->transports[0], steady_clock());
  show_peer_on(some_.back());
  {
    const OwnCore::Sleep sleep(own);
    EXPECT_EQ(allowed_cpus(), std::vector<int>{some_.front()});
  }
  EXPECT_EQ(allowed_cpus(), some_);
  // Peers have all cores of the affinity, or none of them.
  allow({some_.front()});
  for (const int core : {some_.front(), some_.back() + 1}) {
    show_peer_on(core);
    const OwnCore::Sleep sleep(own);
    EXPECT_EQ(allowed_cpus(), std::vector<int>{some_.front()});
  }
}

}  // namespace
}  // namespace rdmacoll::conformance
