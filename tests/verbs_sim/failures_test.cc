#include <algorithm>
#include <set>

#include "verbs_sim/fixture.h"

namespace rdmacoll::verbs_sim {
namespace {

constexpr int kFlushed = rdma::kFlushed;

bool breaks(Host& host) {  // later posts are flushed
  return host.post_send(99, 0, 8);
}

TEST(VerbsSimFailures, a_send_waits_for_a_receive_and_then_arrives) {
  Pair pair({});
  pair.path.rnr_retries = 7;
  pair.connect();
  ASSERT_TRUE(pair.left().post_send(1, 0, 8));
  EXPECT_FALSE(pair.fabric.run(2000)) << "7 is for ever";
  EXPECT_GT(pair.fabric.counters().rnrs, 20u);
  ASSERT_TRUE(pair.right().post_receive(2, 0, 64));
  EXPECT_EQ(statuses(pair.finish(pair.left())), std::vector<int>{0});
  EXPECT_EQ(ids(pair.right().poll()), std::vector<uint64_t>{2});
}

TEST(VerbsSimFailures, a_receiver_that_is_never_ready_is_an_error_and_its_end_stays) {
  for (const SendKind kind : {SendKind::send, SendKind::write_with_immediate}) {
    Pair pair({});
    pair.connect();
    ASSERT_TRUE(pair.left().post_write(1, 0, 64, pair.right(), 0, kind));
    ASSERT_TRUE(pair.left().post_write(2, 0, 64, pair.right(), 0));
    EXPECT_EQ(statuses(pair.finish(pair.left())), (std::vector<int>{13, kFlushed}));
    EXPECT_EQ(pair.fabric.counters().rnrs, 4u);
    ASSERT_TRUE(pair.right().post_receive(1, 0, 64));
    EXPECT_TRUE(pair.finish(pair.right()).empty());
  }
}

TEST(VerbsSimFailures, with_a_clock_a_receiver_has_the_time_of_its_timer) {
  TestClock clock;
  Pair pair({}, &clock);
  pair.path.rnr_timer = 12;  // 0.64 ms
  pair.connect();
  ASSERT_TRUE(pair.left().post_send(1, 0, 8));
  const Nanoseconds began = clock.now();
  while (pair.left().poll().empty()) {
    pair.fabric.run(200);
    clock.advance(10 * kMicrosecond);
    ASSERT_LT(clock.now() - began, kSecond);
  }
  EXPECT_GE(clock.now() - began, 3 * 640 * kMicrosecond);
  EXPECT_LE(clock.now() - began, 3 * 670 * kMicrosecond);
}

TEST(VerbsSimFailures, a_wrong_key_or_range_breaks_both_ends) {
  enum class Fault { stale, local_for_remote, behind, before };
  for (const Fault fault : {Fault::stale, Fault::local_for_remote, Fault::behind, Fault::before}) {
    Pair pair({});
    pair.connect();
    Host& to = pair.right();
    std::unique_ptr<rdma::Registration> second;
    ASSERT_TRUE(to.device->register_memory(to.memory.data(), 64, second).ok());
    rdma::SendRequest request{.kind = SendKind::write,
                              .is_signalled = true,
                              .remote_key = second->keys().remote,
                              .remote_address = to.address(0),
                              .id = 1};
    if (fault == Fault::stale) second.reset();
    if (fault == Fault::local_for_remote) request.remote_key = second->keys().local;
    if (fault == Fault::behind) request.remote_address += 1;
    if (fault == Fault::before) request.remote_address -= 1;
    ASSERT_TRUE(to.post_receive(7, 0, 64));
    pair.left().fill(0, 64, 3);
    ASSERT_TRUE(pair.left().post(request, 0, 64));
    ASSERT_TRUE(pair.left().post_write(2, 0, 8, to, 0));
    EXPECT_EQ(statuses(pair.finish(pair.left())), (std::vector<int>{10, kFlushed}));
    EXPECT_EQ(statuses(to.poll()), std::vector<int>{kFlushed});
    EXPECT_TRUE(to.is_filled(0, 64, 0));
    ASSERT_TRUE(breaks(to) && breaks(pair.left()));
    EXPECT_EQ(statuses(pair.finish(to)), std::vector<int>{kFlushed});
    EXPECT_EQ(statuses(pair.left().poll()), std::vector<int>{kFlushed});
  }
}

TEST(VerbsSimFailures, what_is_deregistered_in_the_middle_of_a_write_is_not_written_any_more) {
  int refused = 0, arrived = 0, in_part = 0;
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    Pair pair({.seed = seed});
    pair.connect();
    pair.left().fill(0, 1000, 3);
    ASSERT_TRUE(pair.left().post_write(1, 0, 1000, pair.right(), 0));
    for (uint64_t i = 0; i < seed % 20; ++i) pair.fabric.step();
    pair.right().registration.reset();
    const std::vector<std::byte> then = pair.right().memory;
    const std::vector<int> found = statuses(pair.finish(pair.left()));
    EXPECT_EQ(pair.right().memory, then);
    ASSERT_EQ(found.size(), 1u);
    arrived += found[0] == 0;
    refused += found[0] == 10;
    in_part += found[0] == 10 && !pair.right().is_filled(0, 1000, 0);
    if (found[0] == 0) {
      EXPECT_TRUE(pair.right().is_filled(0, 1000, 3));
    }
  }
  EXPECT_EQ(refused + arrived, 200);
  EXPECT_GT(arrived, 10);
  EXPECT_GT(in_part, 10);
}

TEST(VerbsSimFailures, a_receive_that_is_too_small_is_an_error_at_both_ends) {
  for (const bool is_soft : {true, false}) {
    Pair pair({}, {is_soft ? soft_roce(0) : ethernet(0)}, {is_soft ? soft_roce(1) : ethernet(1)});
    pair.connect();
    ASSERT_TRUE(pair.right().post_receive(1, 0, 63) && pair.right().post_receive(2, 100, 64));
    ASSERT_TRUE(pair.left().post_send(3, 0, 64) && pair.left().post_send(4, 0, 64));
    EXPECT_EQ(statuses(pair.finish(pair.left())), (std::vector<int>{is_soft ? 11 : 9, kFlushed}));
    const std::vector<Completion> failed = pair.right().poll();
    EXPECT_EQ(statuses(failed), (std::vector<int>{is_soft ? 2 : 1, kFlushed}));
    EXPECT_EQ(ids(failed), (std::vector<uint64_t>{1, 2}));
    EXPECT_EQ(failed[0].vendor_error == 0, is_soft);
  }
}

TEST(VerbsSimFailures, a_dead_peer_is_an_error_after_the_retries) {
  Pair pair({.retry_steps = 100});
  pair.path.retries = 6;
  pair.connect();
  ASSERT_TRUE(pair.left().post_write(1, 0, 8, pair.right(), 0));
  pair.fabric.kill(1);
  EXPECT_FALSE(pair.fabric.run(650));
  EXPECT_EQ(statuses(pair.finish(pair.left())), std::vector<int>{12});
  EXPECT_LT(pair.fabric.counters().steps, 1200u);
}

TEST(VerbsSimFailures, with_a_clock_a_dead_peer_takes_the_time_of_the_path) {
  TestClock clock;
  Pair pair({}, &clock);
  pair.path.timeout = 17;
  pair.path.retries = 6;
  pair.connect();
  pair.right().queue_pair.reset();  // like a dead peer
  ASSERT_TRUE(pair.left().post_write(1, 0, 8, pair.right(), 0));
  EXPECT_FALSE(pair.fabric.run(2000));
  clock.advance(3700 * kMillisecond);
  EXPECT_FALSE(pair.fabric.run(2000));
  EXPECT_TRUE(pair.left().poll().empty());
  clock.advance(100 * kMillisecond);
  EXPECT_EQ(statuses(pair.finish(pair.left())), std::vector<int>{12});
}

TEST(VerbsSimFailures, seven_retries_are_for_ever_on_soft_roce_and_timeout_0_everywhere) {
  for (const bool is_soft : {true, false}) {
    for (const uint8_t timeout : {uint8_t{0}, uint8_t{14}}) {
      Pair pair({}, {is_soft ? soft_roce(0) : ethernet(0)}, {is_soft ? soft_roce(1) : ethernet(1)});
      pair.path.timeout = timeout;
      pair.path.retries = 7;
      pair.connect();
      pair.fabric.kill(1);
      ASSERT_TRUE(pair.left().post_write(1, 0, 8, pair.right(), 0));
      EXPECT_EQ(pair.fabric.run(20'000), !is_soft && timeout != 0);
    }
  }
}

TEST(VerbsSimFailures, a_cut_that_heals_in_time_is_only_a_delay) {
  for (uint64_t seed = 1; seed <= 50; ++seed) {
    Pair pair({.seed = seed, .retry_steps = 100});
    pair.connect();
    pair.left().fill(0, 1000, 4);
    ASSERT_TRUE(pair.right().post_receive(1, 0, 1000));
    ASSERT_TRUE(pair.left().post_send(1, 0, 1000));
    for (uint64_t i = 0; i < seed % 10; ++i) pair.fabric.step();
    pair.fabric.cut(1, 0);
    pair.fabric.run(150);
    pair.fabric.heal(0, 1);
    EXPECT_EQ(statuses(pair.finish(pair.left())), std::vector<int>{0}) << "seed " << seed;
    EXPECT_EQ(statuses(pair.right().poll()), std::vector<int>{0});
    EXPECT_TRUE(pair.right().is_filled(0, 1000, 4));
    EXPECT_FALSE(is_readable(pair.left().device->async_fd()));
  }
}

TEST(VerbsSimFailures, every_silence_has_all_the_retries_again) {
  Pair pair({.retry_steps = 100});  // 300 steps with 2 retries
  pair.connect();
  for (uint64_t i = 0; i < 3; ++i) {
    pair.fabric.cut(0, 1);
    ASSERT_TRUE(pair.left().post_write(i, 0, 8, pair.right(), 0));
    EXPECT_FALSE(pair.fabric.run(200));
    pair.fabric.heal(0, 1);
    EXPECT_EQ(statuses(pair.finish(pair.left())), std::vector<int>{0}) << i;
  }
}

TEST(VerbsSimFailures, a_port_that_goes_down_leaves_the_other_devices_of_its_host_alone) {
  SimFabric fabric({});
  for (int host = 0; host < 2; ++host) {
    fabric.add_host({soft_roce(host, 0), soft_roce(host, 1)});
  }
  Host ends[2][2];  // by rail and host
  for (int rail = 0; rail < 2; ++rail) {
    for (int host = 0; host < 2; ++host) {
      ends[rail][host] = make_host(fabric.verbs(host), {soft_roce(host, rail)}, 1, 0);
    }
    for (int host = 0; host < 2; ++host) {
      Host& end = ends[rail][host];
      const rdma::End peer = ends[rail][1 - host].queue_pair->local();
      ASSERT_TRUE(end.queue_pair->connect(peer, path_of(end, 1, 0)).ok());
    }
  }
  fabric.lower_port(1, "rxe0", 1);
  for (int rail = 0; rail < 2; ++rail) {
    ASSERT_TRUE(ends[rail][0].post_write(1, 0, 8, ends[rail][1], 0));
    EXPECT_EQ(is_readable(ends[rail][1].device->async_fd()), rail == 0);
  }
  EXPECT_TRUE(fabric.run());
  EXPECT_EQ(statuses(ends[0][0].poll()), std::vector<int>{12});
  EXPECT_EQ(statuses(ends[1][0].poll()), std::vector<int>{0});
}

TEST(VerbsSimFailures, a_message_can_have_arrived_though_its_sender_has_an_error) {
  int arrived_and_failed = 0;
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    Pair pair({.seed = seed, .acknowledgement_lost = 0.5});
    pair.connect();
    ASSERT_TRUE(pair.right().post_receive(1, 0, 64));
    ASSERT_TRUE(pair.left().post_send(1, 0, 64));
    for (uint64_t i = 0; i < seed % 20; ++i) pair.fabric.step();
    pair.fabric.cut(0, 1);
    const std::vector<int> sent = statuses(pair.finish(pair.left()));
    ASSERT_EQ(sent.size(), 1u);
    const bool has_arrived = !pair.right().poll().empty();
    if (!has_arrived) {
      EXPECT_EQ(sent[0], 12) << "seed " << seed;
    }
    arrived_and_failed += has_arrived && sent[0] == 12;
  }
  EXPECT_GT(arrived_and_failed, 5);
}

TEST(VerbsSimFailures, a_port_says_that_it_goes_down_and_comes_back) {
  Pair pair({.retry_steps = 100});
  pair.connect();
  pair.fabric.lower_port(1, "rxe0", 1);
  rdma::Device& device = *pair.right().device;
  EXPECT_FALSE(is_readable(pair.left().device->async_fd()));
  ASSERT_TRUE(is_readable(device.async_fd()));
  std::vector<rdma::DeviceFacts> facts;
  ASSERT_TRUE(pair.fabric.verbs(1).list(facts).ok());
  EXPECT_EQ(facts[0].ports[0].state, rdma::PortState::down);
  ASSERT_TRUE(pair.left().post_write(1, 0, 8, pair.right(), 0));
  pair.fabric.run(150);
  EXPECT_TRUE(pair.left().poll().empty());
  pair.fabric.raise_port(1, "rxe0", 1);
  EXPECT_EQ(statuses(pair.finish(pair.left())), std::vector<int>{0});
  rdma::AsyncEvent event;
  ASSERT_TRUE(device.take_async_event(event));
  EXPECT_EQ(event.kind, rdma::EventKind::port_down);
  EXPECT_EQ(event.port, 1);
  ASSERT_TRUE(device.take_async_event(event));
  EXPECT_EQ(event.kind, rdma::EventKind::port_up);
  EXPECT_FALSE(device.take_async_event(event));
  EXPECT_FALSE(is_readable(device.async_fd()));
}

TEST(VerbsSimFailures, a_fatal_device_says_so_and_does_nothing_any_more) {
  Pair pair({});
  pair.connect();
  ASSERT_TRUE(pair.right().post_write(1, 0, 8, pair.left(), 0));
  pair.fabric.break_device(0, "rxe0");
  rdma::AsyncEvent event;
  ASSERT_TRUE(pair.left().device->take_async_event(event));
  EXPECT_EQ(event.kind, rdma::EventKind::device_fatal);
  Status status;
  Completion completion;
  EXPECT_EQ(pair.left().device->poll({&completion, 1}, status), 0u);
  EXPECT_FALSE(status.ok());
  const rdma::SendRequest request;
  EXPECT_EQ(pair.left().queue_pair->post_sends({&request, 1}, status), 0u);
  EXPECT_EQ(status.message(), "rxe0 has failed: Input/output error");
  EXPECT_FALSE(pair.left().device->arm().ok());
  EXPECT_EQ(statuses(pair.finish(pair.right())), std::vector<int>{12});
}

TEST(VerbsSimFailures, a_broken_completion_queue_says_so) {
  Pair pair({});
  pair.connect();
  ASSERT_TRUE(pair.left().post_write(1, 0, 8, pair.right(), 0));
  pair.fabric.break_completion_queue(*pair.left().device);
  EXPECT_TRUE(pair.fabric.run());
  rdma::AsyncEvent event;
  ASSERT_TRUE(pair.left().device->take_async_event(event));
  EXPECT_EQ(event.kind, rdma::EventKind::completion_queue_fatal);
  Status status;
  Completion completion;
  EXPECT_EQ(pair.left().device->poll({&completion, 1}, status), 0u);
  EXPECT_FALSE(status.ok());
}

TEST(VerbsSimFailures, one_queue_pair_can_break_alone) {
  Pair pair({});
  pair.connect();
  ASSERT_TRUE(pair.left().post_receive(3, 0, 64));
  pair.fabric.break_queue_pair(*pair.left().queue_pair);
  rdma::AsyncEvent event;
  ASSERT_TRUE(pair.left().device->take_async_event(event));
  EXPECT_EQ(event.kind, rdma::EventKind::queue_pair_fatal);
  EXPECT_EQ(event.queue_pair, pair.left().queue_pair->local().queue_pair);
  EXPECT_EQ(statuses(pair.finish(pair.left())), std::vector<int>{kFlushed});
}

TEST(VerbsSimFailures, fail_flushes_everything_in_order_and_what_had_arrived_may_be_among_it) {
  int arrived_and_flushed = 0;
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    Pair pair({.seed = seed});
    pair.connect();
    for (uint64_t i = 0; i < 4; ++i) {
      ASSERT_TRUE(pair.right().post_receive(i, 0, 64) && pair.left().post_receive(i, 0, 64));
      // Unsignalled requests are flushed with a completion, too.
      ASSERT_TRUE(pair.left().post_send(10 + i, 0, 64, i % 2 == 1));
    }
    for (uint64_t i = 0; i < seed % 20; ++i) pair.fabric.step();
    pair.left().queue_pair->fail();
    std::vector<uint64_t> sends, receives;
    std::size_t succeeded = 0;
    for (const Completion& completion : pair.finish(pair.left())) {
      (completion.id >= 10 ? sends : receives).push_back(completion.id);
      const bool is_flushed = completion.status == kFlushed;
      EXPECT_TRUE(is_flushed || completion.status == 0);
      if (is_flushed) continue;
      succeeded = completion.id - 9;
    }
    EXPECT_EQ(receives, (std::vector<uint64_t>{0, 1, 2, 3})) << "seed " << seed;
    EXPECT_TRUE(std::is_sorted(sends.begin(), sends.end())) << "seed " << seed;
    std::size_t arrived = 0;
    for (const Completion& completion : pair.right().poll()) arrived += completion.status == 0;
    EXPECT_GE(arrived, succeeded);
    const bool all_sent = succeeded == 4;
    arrived_and_flushed += !all_sent && arrived > succeeded && sends.back() == 13;
  }
  EXPECT_GT(arrived_and_flushed, 20);
}

TEST(VerbsSimFailures, only_id_status_and_queue_pair_of_a_failed_completion_mean_anything) {
  Pair pair({});
  for (uint64_t i = 0; i < 8; ++i) ASSERT_TRUE(pair.left().post_receive(i, 0, 64));
  pair.left().queue_pair->fail();
  std::set<CompletionKind> kinds;
  for (const Completion& completion : pair.finish(pair.left())) {
    EXPECT_EQ(completion.queue_pair, pair.left().queue_pair->local().queue_pair);
    EXPECT_EQ(completion.status, kFlushed);
    kinds.insert(completion.kind);
  }
  EXPECT_GT(kinds.size(), 1u);
}

}  // namespace
}  // namespace rdmacoll::verbs_sim
