#include "verbs_sim/fixture.h"

namespace rdmacoll::verbs_sim {
namespace {

TEST(VerbsSimQueues, a_full_send_queue_takes_what_fits) {
  Pair pair({});
  pair.connect();
  const rdma::Sge piece = pair.left().piece(0, 8);
  const std::vector<rdma::SendRequest> chain(12, {.kind = SendKind::write,
                                                  .is_signalled = true,
                                                  .remote_key = pair.right().keys().remote,
                                                  .remote_address = pair.right().address(0),
                                                  .pieces = {&piece, 1}});
  Status status;
  EXPECT_EQ(pair.left().queue_pair->granted().sends, 8u);
  EXPECT_EQ(pair.left().queue_pair->post_sends(chain, status), 8u);
  EXPECT_TRUE(status.ok());
  EXPECT_EQ(pair.left().queue_pair->post_sends(chain, status), 0u);
  EXPECT_TRUE(status.ok());
  EXPECT_EQ(pair.fabric.counters().fulls, 2u);
  // An entry becomes free when its completion is polled, not when the send ends.
  EXPECT_TRUE(pair.fabric.run());
  EXPECT_FALSE(pair.left().post_send(1, 0, 8));
  EXPECT_EQ(pair.left().poll().size(), 8u);
  EXPECT_EQ(pair.left().queue_pair->post_sends(chain, status), 8u);
}

TEST(VerbsSimQueues, sends_without_a_signal_hold_their_entries_until_a_later_one_completes) {
  Pair pair({});
  pair.connect();
  for (uint64_t i = 0; i < 8; ++i) ASSERT_TRUE(pair.right().post_receive(i, 0, 64));
  for (uint64_t i = 0; i < 5; ++i) ASSERT_TRUE(pair.left().post_send(i, 0, 8, false));
  EXPECT_TRUE(pair.finish(pair.left()).empty());
  for (uint64_t i = 5; i < 7; ++i) ASSERT_TRUE(pair.left().post_send(i, 0, 8, false));
  ASSERT_TRUE(pair.left().post_send(7, 0, 8, true));
  EXPECT_FALSE(pair.left().post_send(8, 0, 8));
  EXPECT_EQ(ids(pair.finish(pair.left())), std::vector<uint64_t>{7});
  for (uint64_t i = 0; i < 7; ++i) EXPECT_TRUE(pair.left().post_send(i, 0, 8, false)) << i;
}

TEST(VerbsSimQueues, a_full_receive_queue_takes_no_more_until_one_is_polled) {
  Pair pair({});
  pair.connect();
  for (uint64_t i = 0; i < 8; ++i) EXPECT_TRUE(pair.right().post_receive(i, 0, 64));
  EXPECT_FALSE(pair.right().post_receive(8, 0, 64));
  ASSERT_TRUE(pair.left().post_send(1, 0, 8));
  EXPECT_TRUE(pair.fabric.run());
  EXPECT_FALSE(pair.right().post_receive(8, 0, 64));
  EXPECT_EQ(pair.right().poll().size(), 1u);
  EXPECT_TRUE(pair.right().post_receive(8, 0, 64));
}

TEST(VerbsSimQueues, a_seed_refuses_posts_that_would_fit) {
  Pair pair({.seed = 5, .full = 0.5});
  pair.connect();
  int refused = 0, taken = 0;
  for (uint64_t i = 0; i < 200; ++i) {
    const bool is_taken = pair.left().post_write(i, 0, 8, pair.right(), 0);
    (is_taken ? taken : refused) += 1;
    pair.finish(pair.left());
  }
  EXPECT_GT(taken, 100);
  EXPECT_GT(refused, 5);
  EXPECT_EQ(pair.fabric.counters().fulls, static_cast<uint64_t>(refused));
}

TEST(VerbsSimQueues, an_armed_queue_makes_its_channel_readable_once) {
  Pair pair({.step_at_arm = 0});
  pair.connect();
  rdma::Device& device = *pair.left().device;
  const auto write = [&] {
    ASSERT_TRUE(pair.left().post_write(1, 0, 8, pair.right(), 0));
    EXPECT_TRUE(pair.fabric.run());
  };
  write();
  EXPECT_FALSE(is_readable(device.completion_fd())) << "nobody armed it";
  ASSERT_TRUE(device.arm().ok());
  EXPECT_FALSE(is_readable(device.completion_fd())) << "it came before";
  write();
  EXPECT_TRUE(is_readable(device.completion_fd()));
  device.take_completion_events();
  EXPECT_FALSE(is_readable(device.completion_fd()));
  write();
  EXPECT_FALSE(is_readable(device.completion_fd())) << "it was not armed again";
  EXPECT_EQ(pair.left().poll().size(), 3u);
  EXPECT_EQ(pair.fabric.counters().events, 1u);
}

// Waits like an epoll loop. Returns false if it would sleep for ever although something has come.
bool waits_right(Pair& pair, bool polls_again) {
  Host& host = pair.left();
  for (;;) {
    if (!host.poll().empty()) return true;
    EXPECT_TRUE(host.device->arm().ok());
    if (polls_again && !host.poll().empty()) return true;
    EXPECT_TRUE(pair.fabric.run());
    if (!is_readable(host.device->completion_fd())) return false;
    host.device->take_completion_events();
  }
}

TEST(VerbsSimQueues, a_sleeper_that_does_not_poll_again_after_arming_sleeps_for_ever) {
  int slept_for_ever = 0;
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    for (const bool polls_again : {true, false}) {
      Pair pair({.seed = seed, .delay_max = 1, .pieces_max = 1, .event_spurious = 0.1});
      pair.connect();
      ASSERT_TRUE(pair.left().post_write(1, 0, 8, pair.right(), 0));
      for (uint64_t i = 0; i < seed % 6; ++i) pair.fabric.step();
      const bool is_right = waits_right(pair, polls_again);
      if (polls_again) {
        EXPECT_TRUE(is_right) << "seed " << seed;
      }
      slept_for_ever += !is_right;
    }
  }
  EXPECT_GT(slept_for_ever, 10);
}

TEST(VerbsSimQueues, an_event_can_be_lost_and_the_completion_is_there) {
  Pair pair({.step_at_arm = 0, .event_lost = 1});
  pair.connect();
  ASSERT_TRUE(pair.left().device->arm().ok());
  ASSERT_TRUE(pair.left().post_write(1, 0, 8, pair.right(), 0));
  EXPECT_TRUE(pair.fabric.run());
  EXPECT_FALSE(is_readable(pair.left().device->completion_fd()));
  EXPECT_EQ(pair.left().poll().size(), 1u);
  EXPECT_EQ(pair.fabric.counters().events_lost, 1u);
  EXPECT_EQ(pair.fabric.counters().events, 0u);
}

TEST(VerbsSimQueues, a_channel_can_be_readable_for_nothing) {
  Pair pair({.event_spurious = 1});
  pair.connect();
  ASSERT_TRUE(pair.left().device->arm().ok());
  EXPECT_TRUE(is_readable(pair.left().device->completion_fd()));
  EXPECT_TRUE(pair.left().poll().empty());
}

TEST(VerbsSimQueues, a_destroyed_queue_pair_leaves_completions_behind_on_soft_roce_only) {
  for (const bool is_soft : {true, false}) {
    Pair pair({}, {is_soft ? soft_roce(0) : ethernet(0)}, {is_soft ? soft_roce(1) : ethernet(1)});
    pair.connect();
    ASSERT_TRUE(pair.left().post_write(4, 0, 8, pair.right(), 0));
    EXPECT_TRUE(pair.fabric.run());
    pair.left().queue_pair.reset();
    EXPECT_EQ(pair.left().poll().size(), is_soft ? 1u : 0u);
  }
}

}  // namespace
}  // namespace rdmacoll::verbs_sim
