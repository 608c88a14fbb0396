// The test of a path over every transport: its measurements, and its end when a peer dies.
#include "probe/pair_probe.h"

#include <gtest/gtest.h>

#include <semaphore>
#include <thread>

#include "conformance/harness.h"

namespace rdmacoll::conformance {
namespace {

using probe::Message;
using probe::Plan;
using probe::Row;
using probe::Setting;
using probe::TaskRunner;

Plan quick(std::vector<uint64_t> sizes) {
  return {.sizes = std::move(sizes),
          .repeats = 2,
          .burst = kMillisecond / 2,
          .progress_timeout = 60 * kSecond,
          .limit = 300 * kSecond};
}

// A rank's side of the path in a world of two.
struct Side {
  Side(Fleet& fleet, int rank)
      : world(world_of(2, rank)),
        runner(*fleet.transports[static_cast<std::size_t>(rank)], world, 1 - rank,
               *fleet.pools[static_cast<std::size_t>(rank)], steady_clock()) {}
  World world;
  TaskRunner runner;
};

// Runs one side in its own thread, but only while the other side has nothing to do.
class Follower {
 public:
  Follower(Side& side, const Plan& plan)
      : thread_([this, &side, plan] {
          go_.acquire();
          const Setting setting{steady_clock(), [this](Nanoseconds, Nanoseconds) { give_way(); },
                                plan};
          status = probe::follow(side.runner, setting);
          is_done_ = true;
          back_.release();
        }) {}
  ~Follower() {
    while (!is_done_) turn();
    thread_.join();
  }

  void turn() {
    if (is_done_) return;
    go_.release();
    back_.acquire();
  }
  bool is_done() const { return is_done_; }

  Status status;

 private:
  void give_way() {
    back_.release();
    go_.acquire();
  }

  std::binary_semaphore go_{0}, back_{0};
  bool is_done_ = false;  // the semaphores guard it
  std::thread thread_;
};

class PairProbe : public testing::TestWithParam<Backend> {
 protected:
  void open(Nanoseconds peer_timeout = kNeverSilent) { fleet = GetParam().make(2, peer_timeout); }

  Status lead(Side& side, const Plan& plan, const std::function<void()>& idle) {
    const Setting setting{steady_clock(),
                          [&](Nanoseconds, Nanoseconds) {
                            fleet->step();
                            idle();
                          },
                          plan};
    return probe::lead(side.runner, setting, rows);
  }

  std::unique_ptr<Fleet> fleet;
  std::vector<Row> rows;
};

TEST_P(PairProbe, measures_every_size_both_ways) {
  open();
  const std::vector<uint64_t> sizes = {1, 8, 1000, 8192, 65'536, 300'001};
  const Plan plan = quick(sizes);
  Side leader(*fleet, 0), other(*fleet, 1);
  Status led;
  {
    Follower follower(other, plan);
    led = lead(leader, plan, [&] { follower.turn(); });
    while (!follower.is_done()) {
      fleet->step();
      follower.turn();
    }
    EXPECT_TRUE(follower.status.ok()) << follower.status.message();
  }
  ASSERT_TRUE(led.ok()) << led.message();
  ASSERT_EQ(rows.size(), sizes.size());
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    const Row& row = rows[i];
    EXPECT_EQ(row.bytes, sizes[i]);
    for (const probe::Times& times : {row.latency, row.exchange}) {
      EXPECT_GT(times.min_us, 0);
      EXPECT_LE(times.min_us, times.median_us);
      EXPECT_LE(times.median_us, times.max_us);
      EXPECT_GE(times.rounds, 2u);
    }
    EXPECT_GT(row.speeds.forward, 0);
    EXPECT_GT(row.speeds.back, 0);
    EXPECT_GT(row.speeds.both, 0);
  }
}

TEST_P(PairProbe, measures_only_what_was_asked_for) {
  open();
  Plan plan = quick({64});
  plan.latency = plan.bandwidth = false;
  Side leader(*fleet, 0), other(*fleet, 1);
  Follower follower(other, plan);
  const Status led = lead(leader, plan, [&] { follower.turn(); });
  ASSERT_TRUE(led.ok()) << led.message();
  EXPECT_GT(rows.at(0).exchange.rounds, 0u);
  EXPECT_EQ(rows.at(0).latency.rounds, 0u);
  EXPECT_EQ(rows.at(0).speeds.forward, 0);
}

TEST_P(PairProbe, names_a_follower_that_dies_in_the_middle) {
  open();
  Side leader(*fleet, 0);
  int turns = 0;
  const Status led = lead(leader, quick({65'536}), [&] {
    if (++turns == 3) fleet->transports[1].reset();
  });
  EXPECT_EQ(led.code(), Code::rank_failed) << led.message();
  EXPECT_EQ(led.detail().rank, JobRank(1));
  EXPECT_NE(led.message().find("rank 1 (here"), std::string::npos) << led.message();
}

TEST_P(PairProbe, names_a_leader_that_dies_in_the_middle) {
  open();
  Side other(*fleet, 1);
  int turns = 0;
  const Setting setting{steady_clock(),
                        [&](Nanoseconds, Nanoseconds) {
                          fleet->step();
                          if (++turns == 3) fleet->transports[0].reset();
                        },
                        quick({})};
  const Status followed = probe::follow(other.runner, setting);
  EXPECT_EQ(followed.code(), Code::rank_failed) << followed.message();
  EXPECT_EQ(followed.detail().rank, JobRank(0));
}

TEST_P(PairProbe, gives_up_on_a_peer_that_lives_and_says_nothing) {
  open();
  Side leader(*fleet, 0);
  Plan plan = quick({4096});
  plan.progress_timeout = 50 * kMillisecond;
  Recorder silent;
  const Status led = lead(leader, plan, [&] { fleet->transports[1]->poll(silent); });
  EXPECT_EQ(led.code(), Code::failed);
  EXPECT_NE(led.message().find("nothing moved between this rank and rank 1"), std::string::npos)
      << led.message();
  EXPECT_NE(led.message().find("0.05 s"), std::string::npos) << led.message();
  EXPECT_NE(led.message().find("4 KiB"), std::string::npos) << led.message();
}

TEST_P(PairProbe, ends_within_its_limit_though_the_peer_goes_on) {
  open();
  Plan plan = quick({4096});
  plan.repeats = 1'000'000;
  plan.limit = 200 * kMillisecond;
  Side leader(*fleet, 0), other(*fleet, 1);
  Follower follower(other, quick({}));
  const Status led = lead(leader, plan, [&] { follower.turn(); });
  EXPECT_NE(led.message().find("was not done within 0.2 s"), std::string::npos) << led.message();
  fleet->transports[0].reset();
  while (!follower.is_done()) {
    fleet->step();
    follower.turn();
  }
  EXPECT_EQ(follower.status.code(), Code::rank_failed) << follower.status.message();
}

TEST_P(PairProbe, refuses_data_that_arrives_changed) {
  open();
  Side leader(*fleet, 0), other(*fleet, 1);
  bool begun = false;
  // The other side takes part, but sends wrong bytes.
  const Status led = lead(leader, quick({1000}), [&] {
    Message message;
    if (other.runner.take(message)) {
      message.task.checks = false;
      ASSERT_TRUE(other.runner.begin(message.task, false).ok());
      begun = true;
    }
    other.runner.turn();
    if (begun && other.runner.is_done()) {
      other.runner.say({.kind = Message::Kind::done});
      begun = false;
    }
  });
  EXPECT_EQ(led.code(), Code::failed);
  EXPECT_NE(led.message().find("bytes arrived changed"), std::string::npos) << led.message();
}

TEST_P(PairProbe, refuses_what_is_no_message) {
  open();
  Side leader(*fleet, 0);
  Recorder other;
  const std::vector<std::byte> nonsense(5, std::byte{0xab});
  fleet->offer([&] { return fleet->transports[1]->post_control(0, nonsense); });
  const Status led = lead(leader, quick({8}), [&] { fleet->transports[1]->poll(other); });
  EXPECT_NE(led.message().find("sent nonsense"), std::string::npos) << led.message();
}

TEST_P(PairProbe, refuses_transfers_that_the_pool_cannot_hold) {
  open();
  Side leader(*fleet, 0);
  const Status led = lead(leader, quick({uint64_t{1} << 40}), [] {});
  EXPECT_NE(led.message().find("TF_RDMA_BUF_SIZE"), std::string::npos) << led.message();
}

INSTANTIATE_TEST_SUITE_P(All, PairProbe, testing::ValuesIn(backends()), test_name);

}  // namespace
}  // namespace rdmacoll::conformance
