#include <algorithm>
#include <cstring>
#include <random>
#include <set>

#include "verbs_sim/fixture.h"

namespace rdmacoll::verbs_sim {
namespace {

constexpr int kSeeds = 200;

// Both ends write, send and use immediates in a random mix. Everything must arrive in order.
uint64_t exchange(uint64_t seed) {
  constexpr int kMessages = 60;
  constexpr uint32_t kSlot = 64;
  Pair pair({.seed = seed, .full = 0.2, .event_spurious = 0.1});
  pair.connect();
  std::mt19937 random(static_cast<uint32_t>(seed));
  struct Side {
    int posted = 0, sent = 0, arrived = 0, receives = 0;
    std::vector<SendKind> kinds;
    std::vector<uint32_t> sizes;
  } sides[2];
  for (Side& side : sides) {
    for (int i = 0; i < kMessages; ++i) {
      side.kinds.push_back(random() % 2 != 0 ? SendKind::send : SendKind::write_with_immediate);
      side.sizes.push_back(random() % kSlot);
    }
  }
  // Offsets: 8 slots to send from, 8 to receive in, 8 to be written to.
  const auto slot = [](int area, int number) {
    return static_cast<std::size_t>((area * 8 + number % 8) * static_cast<int>(kSlot));
  };
  for (int turn = 0; turn < 200'000; ++turn) {
    for (std::size_t me = 0; me < 2; ++me) {
      Host& host = pair.hosts[me];
      Host& peer = pair.hosts[1 - me];
      Side& side = sides[me];
      Side& other = sides[1 - me];
      if (side.receives < kMessages && side.receives < side.arrived + 8) {
        side.receives +=
            host.post_receive(static_cast<uint64_t>(side.receives), slot(1, side.receives), kSlot);
      }
      const int next = side.posted;
      if (next < kMessages && next < side.sent + 8 && next < other.receives) {
        const auto index = static_cast<std::size_t>(next);
        const uint32_t bytes = side.sizes[index];
        host.fill(slot(0, next), bytes, next + 1);
        const auto id = static_cast<uint64_t>(next);
        side.posted += side.kinds[index] == SendKind::send
                           ? host.post_send(id, slot(0, next), bytes)
                           : host.post_write(id, slot(0, next), bytes, peer, slot(2, next),
                                             SendKind::write_with_immediate);
      }
      for (const Completion& completion : host.poll()) {
        EXPECT_EQ(completion.status, 0) << "seed " << seed;
        if (completion.kind == CompletionKind::sent) {
          EXPECT_EQ(completion.id, static_cast<uint64_t>(side.sent++)) << "seed " << seed;
          continue;
        }
        const int number = side.arrived++;
        const auto index = static_cast<std::size_t>(number);
        const bool is_send = other.kinds[index] == SendKind::send;
        EXPECT_EQ(completion.id, static_cast<uint64_t>(number)) << "seed " << seed;
        EXPECT_EQ(completion.kind == CompletionKind::received, is_send) << "seed " << seed;
        EXPECT_EQ(completion.bytes, other.sizes[index]) << "seed " << seed;
        if (!is_send) {
          EXPECT_EQ(completion.immediate, static_cast<uint32_t>(number));
        }
        EXPECT_TRUE(host.is_filled(slot(is_send ? 1 : 2, number), completion.bytes, number + 1))
            << "seed " << seed << ", message " << number;
      }
    }
    if (sides[0].sent == kMessages && sides[1].sent == kMessages && sides[0].arrived == kMessages &&
        sides[1].arrived == kMessages) {
      EXPECT_EQ(pair.fabric.counters().changed_under_way, 0u);
      EXPECT_EQ(pair.fabric.counters().rnrs, 0u);
      return pair.fabric.digest();
    }
  }
  ADD_FAILURE() << "seed " << seed << " does not end";
  return 0;
}

TEST(VerbsSimTransfers, everything_arrives_whole_and_in_order_under_every_seed) {
  for (uint64_t seed = 1; seed <= 60 && !testing::Test::HasFailure(); ++seed) exchange(seed);
}

TEST(VerbsSimTransfers, one_seed_is_one_run) {
  std::set<uint64_t> digests;
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    const uint64_t digest = exchange(seed);
    EXPECT_EQ(exchange(seed), digest) << seed;
    digests.insert(digest);
  }
  EXPECT_EQ(digests.size(), 10u);
}

TEST(VerbsSimTransfers, sender_and_receiver_learn_of_a_message_in_either_order) {
  int sender_first = 0, receiver_first = 0;
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    Pair pair({.seed = seed, .step_on_poll = 0});
    pair.connect();
    ASSERT_TRUE(pair.right().post_receive(1, 0, 64) && pair.left().post_send(2, 0, 64));
    bool sent = false, received = false;
    while (!sent && !received) {
      pair.fabric.step();
      sent = !pair.left().poll().empty();
      received = !pair.right().poll().empty();
    }
    sender_first += sent && !received;
    receiver_first += received && !sent;
  }
  EXPECT_GT(sender_first, kSeeds / 20);
  EXPECT_GT(receiver_first, kSeeds / 20);
}

TEST(VerbsSimTransfers, queue_pairs_overtake_each_other) {
  int overtaken = 0;
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    Pair pair({.seed = seed});
    pair.connect();
    std::unique_ptr<rdma::QueuePair> second[2];
    for (std::size_t i = 0; i < 2; ++i) {
      const HostOptions& options = pair.options[i];
      ASSERT_TRUE(pair.hosts[i].device->create_queue_pair(options.limits, 1, 1, 0, second[i]).ok());
    }
    ASSERT_TRUE(second[0]->connect(second[1]->local(), pair.path).ok());
    ASSERT_TRUE(second[1]->connect(second[0]->local(), pair.path).ok());
    ASSERT_TRUE(pair.left().post_write(1, 0, 100, pair.right(), 0));
    pair.left().queue_pair.swap(second[0]);
    ASSERT_TRUE(pair.left().post_write(2, 0, 100, pair.right(), 200));
    const std::vector<uint64_t> order = ids(pair.finish(pair.left()));
    ASSERT_EQ(order.size(), 2u);
    overtaken += order[0] == 2;
  }
  EXPECT_GT(overtaken, kSeeds / 20);
  EXPECT_LT(overtaken, kSeeds / 2);
}

TEST(VerbsSimTransfers, a_write_lands_in_parts_and_is_whole_when_it_is_told) {
  int seen_in_part = 0, seen_back_first = 0;
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    Pair pair({.seed = seed});
    pair.connect();
    pair.left().fill(0, 1000, 7);
    ASSERT_TRUE(pair.right().post_receive(5, 0, 0));
    ASSERT_TRUE(
        pair.left().post_write(9, 0, 1000, pair.right(), 2000, SendKind::write_with_immediate));
    bool in_part = false, back_first = false;
    for (;;) {
      const std::vector<Completion> arrived = pair.right().poll();
      if (!arrived.empty()) {
        EXPECT_EQ(arrived[0].immediate, 9u);
        EXPECT_TRUE(pair.right().is_filled(2000, 1000, 7)) << "seed " << seed;
        break;
      }
      const bool front = pair.right().memory[2000] == std::byte(7);
      const bool back = pair.right().memory[2999] == std::byte(7);
      in_part |= front != back;
      back_first |= back && !front;
      pair.fabric.step();
    }
    seen_in_part += in_part;
    seen_back_first += back_first;
  }
  EXPECT_GT(seen_in_part, kSeeds / 4);
  EXPECT_GT(seen_back_first, kSeeds / 20);  // a user that polls the last byte is wrong
}

TEST(VerbsSimTransfers, memory_that_is_used_again_too_early_shows) {
  int torn = 0;
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    Pair pair({.seed = seed});
    pair.connect();
    pair.left().fill(0, 1000, 1);
    ASSERT_TRUE(pair.left().post_write(1, 0, 1000, pair.right(), 0));
    for (uint64_t i = 0; i < seed % 8; ++i) pair.fabric.step();
    if (!pair.left().poll().empty()) continue;
    pair.left().fill(0, 1000, 2);
    ASSERT_EQ(statuses(pair.finish(pair.left())), std::vector<int>{0});
    torn += !pair.right().is_filled(0, 1000, 1);
    EXPECT_LE(pair.fabric.counters().changed_under_way, 1u);
    if (!pair.right().is_filled(0, 1000, 1)) {
      EXPECT_EQ(pair.fabric.counters().changed_under_way, 1u) << "seed " << seed;
    }
  }
  EXPECT_GT(torn, kSeeds / 4);
}

TEST(VerbsSimTransfers, an_inline_payload_is_copied_by_the_call) {
  Pair pair({});
  pair.connect();
  ASSERT_TRUE(pair.right().post_receive(1, 0, 64));
  std::byte own[40];  // in no registration
  std::memset(own, 5, sizeof own);
  const rdma::Sge piece{own, sizeof own, 0};
  const rdma::SendRequest request{
      .is_signalled = true, .is_inline = true, .id = 1, .pieces = {&piece, 1}};
  Status status;
  ASSERT_EQ(pair.left().queue_pair->post_sends({&request, 1}, status), 1u);
  std::memset(own, 6, sizeof own);
  EXPECT_EQ(statuses(pair.finish(pair.right())), std::vector<int>{0});
  EXPECT_TRUE(pair.right().is_filled(0, sizeof own, 5));
  EXPECT_EQ(pair.fabric.counters().changed_under_way, 0u);
}

TEST(VerbsSimTransfers, pieces_are_gathered_in_their_order) {
  Pair pair({.seed = 3});
  pair.connect();
  pair.left().fill(0, 10, 1);
  pair.left().fill(500, 30, 2);
  ASSERT_TRUE(pair.right().post_receive(1, 100, 64));
  const rdma::Sge pieces[] = {pair.left().piece(0, 10), pair.left().piece(500, 30)};
  const rdma::SendRequest request{.is_signalled = true, .id = 1, .pieces = pieces};
  Status status;
  ASSERT_EQ(pair.left().queue_pair->post_sends({&request, 1}, status), 1u);
  const std::vector<Completion> arrived = pair.finish(pair.right());
  ASSERT_EQ(arrived.size(), 1u);
  EXPECT_EQ(arrived[0].bytes, 40u);
  EXPECT_TRUE(pair.right().is_filled(100, 10, 1) && pair.right().is_filled(110, 30, 2));
  EXPECT_TRUE(pair.right().is_filled(140, 24, 0));
  const FabricCounters& counters = pair.fabric.counters();
  EXPECT_EQ(counters.sends, 1u);
  EXPECT_EQ(counters.bytes_sent, 40u);
  EXPECT_EQ(counters.writes, 0u);
}

TEST(VerbsSimTransfers, the_same_queue_pair_numbers_come_up_on_every_host) {
  Pair pair({});
  EXPECT_EQ(pair.left().queue_pair->local().queue_pair,
            pair.right().queue_pair->local().queue_pair);
  EXPECT_NE(pair.left().queue_pair->local().first_packet,
            pair.right().queue_pair->local().first_packet);
}

}  // namespace
}  // namespace rdmacoll::verbs_sim
