// How ranks over RDMA meet, and how they refuse each other.
#include <gmock/gmock.h>

#include "conformance/rdma_puppet.h"

namespace rdmacoll::conformance {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using verbs_sim::ethernet;
using verbs_sim::infiniband;
using verbs_sim::soft_roce;
using Word = rdma::GreetingSocket::Word;

// Sits between the sockets of two transports, and passes only the bytes that a test allows.
struct Relay {
  std::pair<Fd, Fd> ends[2] = {unix_pair(), unix_pair()};

  Fd take(int side) { return std::move(ends[side].second); }
  // Passes up to `bytes` bytes from `from` to the other side, and returns their number.
  std::size_t pass(int from, std::size_t bytes) {
    std::vector<std::byte> some(bytes);
    const ssize_t got = ::recv(ends[from].first.get(), some.data(), some.size(), MSG_DONTWAIT);
    if (got <= 0) return 0;
    EXPECT_EQ(::send(ends[1 - from].first.get(), some.data(), static_cast<std::size_t>(got), 0),
              got);
    return static_cast<std::size_t>(got);
  }
  std::size_t pass_exactly(VerbsFleet& fleet, int from, std::size_t bytes) {
    std::size_t passed = 0;
    EXPECT_TRUE(fleet.poll_until([&] { return (passed += pass(from, bytes - passed)) == bytes; }));
    return passed;
  }
};

void poll_some(VerbsFleet& fleet) {
  for (int i = 0; i < 500; ++i) fleet.poll_all();
}

void expect_talks(VerbsFleet& fleet, std::size_t bytes = 300'000) {
  std::mt19937_64 random(bytes);
  static uint64_t cookie = 0;
  for (int from = 0; from < fleet.size(); ++from) {
    for (int to = 0; to < fleet.size(); ++to) {
      if (from == to) continue;
      Buffer source(&fleet.pool(from), bytes, 3, random);
      Buffer target(&fleet.pool(to), bytes, 3, random);
      source.paint(++cookie);
      Transfer transfer{
          .peer = to, .sequence = cookie, .pieces = source.pieces(), .cookie = cookie};
      fleet.offer([&] { return fleet.at(from).post_send(transfer); });
      transfer.peer = from;
      transfer.pieces = target.pieces();
      fleet.offer([&] { return fleet.at(to).post_recv(transfer); });
      EXPECT_TRUE(fleet.poll_until([&] {
        return fleet.sink(to).received_cookies.contains(cookie) &&
               fleet.sink(from).sent_cookies.contains(cookie);
      })) << from
          << " to " << to;
      EXPECT_TRUE(target.is_painted(cookie));
    }
  }
}

TEST(RdmaMeeting, path_record_may_overtake_the_word_that_the_peer_is_ready) {
  VerbsFleet fleet({.seed = 31}, {{.adapters = {ethernet(0)}}, {.adapters = {ethernet(1)}}});
  Relay relay;
  fleet.at(0).adopt(1, relay.take(0));
  fleet.at(1).adopt(0, relay.take(1));
  const std::size_t greeting = rdma::greeting_bytes();
  relay.pass_exactly(fleet, 0, greeting);
  relay.pass_exactly(fleet, 1, greeting + 1);  // with rank 1's word, so rank 0 tries the path
  const uint64_t sends = fleet.fabric.counters().sends;
  EXPECT_TRUE(fleet.poll_until([&] { return fleet.fabric.counters().sends > sends; }) || sends > 0);
  poll_some(fleet);
  EXPECT_GE(fleet.fabric.counters().sends, 1u) << "the record came before the word";
  EXPECT_TRUE(fleet.sink(1).failures.empty());
  EXPECT_FALSE(fleet.at(1).is_connected(0));
  relay.pass_exactly(fleet, 0, 1);
  EXPECT_TRUE(fleet.poll_until([&] { return fleet.all_connected(); }));
  expect_talks(fleet);
}

TEST(RdmaMeeting, greeting_that_comes_byte_by_byte_connects) {
  VerbsFleet fleet({.seed = 32}, {{.adapters = {soft_roce(0)}}, {.adapters = {soft_roce(1)}}});
  Relay relay;
  fleet.at(0).adopt(1, relay.take(0));
  fleet.at(1).adopt(0, relay.take(1));
  EXPECT_TRUE(fleet.poll_until([&] {
    relay.pass(0, 1);
    relay.pass(1, 1);
    return fleet.all_connected();
  }));
  expect_talks(fleet);
}

// A rank may talk to a peer as soon as the peer counts as connected, even while other rails are
// still tried out.
TEST(RdmaMeeting, first_words_come_after_the_path_record_on_any_number_of_rails) {
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    SCOPED_TRACE(seed);
    VerbsFleet fleet({.seed = seed, .delay_max = 100, .stall = 0.4, .retry_steps = 1'000'000},
                     {{.adapters = {ethernet(0, 0), ethernet(0, 1), ethernet(0, 2)}},
                      {.adapters = {ethernet(1, 0), ethernet(1, 1), ethernet(1, 2)}}});
    fleet.meet_all();
    const std::vector<std::byte> word(77, std::byte{9});
    std::array<bool, 2> said{};
    EXPECT_TRUE(fleet.poll_until([&] {
      for (int rank = 0; rank < 2; ++rank) {
        if (said[static_cast<std::size_t>(rank)] || !fleet.at(rank).is_connected(1 - rank))
          continue;
        EXPECT_TRUE(fleet.at(rank).post_control(1 - rank, word).ok());
        said[static_cast<std::size_t>(rank)] = true;
      }
      return !fleet.sink(0).failures.empty() || !fleet.sink(1).failures.empty() ||
             (fleet.sink(0).messages[1].size() == 1 && fleet.sink(1).messages[0].size() == 1);
    }));
    EXPECT_TRUE(fleet.sink(0).failures.empty()) << fleet.sink(0).failures[1].front();
    EXPECT_TRUE(fleet.sink(1).failures.empty()) << fleet.sink(1).failures[0].front();
  }
}

TEST(RdmaMeeting, ranks_with_different_numbers_of_rails_use_those_that_both_have) {
  VerbsFleet fleet(
      {.seed = 33},
      {{.adapters = {ethernet(0, 0), ethernet(0, 1), ethernet(0, 2), ethernet(0, 3)},
        .options = {.chunk_bytes = 10'000}},
       {.adapters = {ethernet(1, 0)}, .options = {.chunk_bytes = 10'000}},
       {.adapters = {ethernet(2, 0), ethernet(2, 1)}, .options = {.chunk_bytes = 10'000}}});
  fleet.meet_all();
  EXPECT_TRUE(fleet.poll_until([&] { return fleet.all_connected(); }));
  expect_talks(fleet);
}

TEST(RdmaMeeting, infiniband_of_two_subnets_with_its_partition_at_index_one_connects) {
  VerbsFleet fleet({.seed = 34},
                   {{.adapters = {infiniband(0, 0, 0)}}, {.adapters = {infiniband(1, 0, 1)}}});
  fleet.meet_all();
  EXPECT_TRUE(fleet.poll_until([&] { return fleet.all_connected(); }));
  expect_talks(fleet);
}

TEST(RdmaMeeting, mtu_is_the_smaller_one_of_both_ends) {
  verbs_sim::AdapterModel small = ethernet(1);
  small.facts.ports[0].active_mtu = 512;
  VerbsFleet fleet({.seed = 35}, {{.adapters = {ethernet(0)}}, {.adapters = {small}}});
  fleet.meet_all();
  EXPECT_TRUE(fleet.poll_until([&] { return fleet.all_connected(); }));
  expect_talks(fleet);
}

TEST(RdmaMeeting, sizes_of_messages_that_differ_do_not_matter) {
  VerbsFleet fleet({.seed = 36},
                   {{.adapters = {ethernet(0)}, .options = {.accumulation_bytes = 32 << 10}},
                    {.adapters = {ethernet(1)}, .options = {.accumulation_bytes = 2 << 10}}});
  fleet.meet_all();
  EXPECT_TRUE(fleet.poll_until([&] { return fleet.all_connected(); }));
  const std::vector<std::byte> word(20'000, std::byte{3});
  for (const int from : {0, 1}) {
    fleet.offer([&] { return fleet.at(from).post_control(1 - from, word); });
    EXPECT_TRUE(fleet.poll_until([&] {
      return !fleet.sink(1 - from).messages[from].empty() || !fleet.sink(0).failures.empty() ||
             !fleet.sink(1).failures.empty();
    }));
    EXPECT_EQ(fleet.sink(1 - from).messages[from].size(), 1u);
  }
  expect_talks(fleet, 5'000);
  expect_talks(fleet);
}

TEST(RdmaMeeting, eager_cut_is_the_smaller_one_that_the_ends_have_found) {
  for (const uint32_t theirs : {16 << 10, 3'000, 0}) {
    VerbsFleet fleet({.seed = 37},
                     {{.adapters = {ethernet(0)},
                       .options = {.accumulation_bytes = 64 << 10, .finds_cut = true}}},
                     2);
    RdmaPuppet puppet(fleet, {ethernet(1)});
    puppet.greeting.eager_bytes = 64 << 10;
    puppet.eager_cut = theirs;
    puppet.connect();
    const std::size_t agreed = fleet.at(0).reach(1).eager_bytes;
    EXPECT_LE(agreed, theirs);
    EXPECT_GE(agreed, std::min(theirs, rdma::kEagerBytesMin));
  }
}

TEST(RdmaMeeting, ranks_that_find_their_cut_on_two_rails_talk) {
  const VerbsRank both{.adapters = {ethernet(0, 0), ethernet(0, 1)},
                       .options = {.accumulation_bytes = 64 << 10, .finds_cut = true}};
  VerbsRank other = both;
  other.adapters = {ethernet(1, 0), ethernet(1, 1)};
  for (uint64_t seed = 40; seed < 60; ++seed) {
    VerbsFleet fleet({.seed = seed}, {both, other});
    fleet.meet_all();
    EXPECT_TRUE(fleet.poll_until([&] { return fleet.all_connected(); }));
    EXPECT_EQ(fleet.at(0).reach(1).eager_bytes, fleet.at(1).reach(0).eager_bytes);
    expect_talks(fleet, 5'000);
    expect_talks(fleet);
  }
}

// ---- refusals ----

class RdmaRefusal : public testing::Test {
 protected:
  // Returns the cause that rank 0 reports for a peer with such a greeting.
  std::string refusal(const std::function<void(rdma::Greeting&)>& edit) {
    puppet_.hear_greeting();
    edit(puppet_.greeting);
    puppet_.say(rdma::encode(puppet_.greeting));
    return fleet_.failure(0, 1);
  }
  std::string refusal(std::span<const std::byte> bytes) {
    puppet_.say(bytes);
    return fleet_.failure(0, 1);
  }

  VerbsFleet fleet_{{.seed = 37}, {{.adapters = {soft_roce(0)}}}, 2};
  RdmaPuppet puppet_{fleet_, {soft_roce(1)}};
};

TEST_F(RdmaRefusal, of_another_epoch) {
  EXPECT_THAT(refusal([](rdma::Greeting& greeting) { greeting.epoch = 2; }),
              HasSubstr("says that it is rank 1 of epoch 2, not rank 1 of epoch 3"));
}

TEST_F(RdmaRefusal, of_another_rank) {
  EXPECT_THAT(refusal([](rdma::Greeting& greeting) { greeting.rank = 5; }),
              HasSubstr("says that it is rank 5 of epoch 3, not rank 1"));
}

TEST_F(RdmaRefusal, of_another_link_layer) {
  EXPECT_THAT(
      refusal(
          [](rdma::Greeting& greeting) { greeting.rails[0].link = rdma::LinkLayer::infiniband; }),
      AllOf(HasSubstr("another link layer than rxe0 port 1"), HasSubstr("TF_RDMA_DEV_NAME")));
}

TEST_F(RdmaRefusal, of_another_version) {
  std::vector<std::byte> bytes = rdma::encode(puppet_.greeting);
  bytes[4] = std::byte{9};
  EXPECT_THAT(refusal(bytes), HasSubstr("it speaks version 9 of the RDMA protocol, this rank 1"));
}

TEST_F(RdmaRefusal, of_what_is_no_greeting) {
  EXPECT_THAT(refusal(std::vector<std::byte>(rdma::greeting_bytes(), std::byte{'x'})),
              HasSubstr("is not one of an RDMA transport"));
}

TEST_F(RdmaRefusal, of_no_rails_and_of_too_many) {
  EXPECT_THAT(refusal([](rdma::Greeting& greeting) { greeting.rails.clear(); }),
              HasSubstr("malformed"));
  rdma::Greeting five = puppet_.greeting;
  five.rails.resize(5);
  rdma::Greeting read;
  EXPECT_NE(rdma::decode(rdma::encode(five), read), "");
}

TEST_F(RdmaRefusal, of_a_gid_that_nobody_has) {
  EXPECT_THAT(refusal([](rdma::Greeting& greeting) { greeting.rails[0].end.gid.raw[15] = 99; }),
              HasSubstr("unreachable"));
}

TEST_F(RdmaRefusal, of_half_a_greeting_and_the_end) {
  const std::vector<std::byte> bytes = rdma::encode(puppet_.greeting);
  puppet_.say(std::span(bytes).first(bytes.size() / 2));
  puppet_.settle(50);
  puppet_.hang_up();
  EXPECT_NE(fleet_.failure(0, 1), "");
}

TEST_F(RdmaRefusal, of_nonsense_behind_the_greeting) {
  puppet_.hear_greeting();
  puppet_.say(rdma::encode(puppet_.greeting));
  EXPECT_THAT(refusal(std::vector<std::byte>(3, std::byte{77})), HasSubstr("nonsense"));
}

TEST_F(RdmaRefusal, of_a_flood_on_the_socket) {
  EXPECT_THAT(refusal(std::vector<std::byte>(60'000, std::byte{0})), testing::Not(""));
}

TEST(RdmaMeeting, of_damaged_greetings_always_ends) {
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    VerbsFleet fleet({.seed = seed}, {{.adapters = {soft_roce(0)}}}, 2);
    RdmaPuppet puppet(fleet, {soft_roce(1)});
    puppet.hear_greeting();
    std::vector<std::byte> bytes = rdma::encode(puppet.greeting);
    for (uint64_t i = 0; i <= random() % 4; ++i) {
      bytes[random() % bytes.size()] = static_cast<std::byte>(random());
    }
    puppet.say(bytes);
    puppet.settle(20);
    puppet.hang_up();
    EXPECT_NE(fleet.failure(0, 1), "");
    EXPECT_EQ(fleet.sink(0).failures[1].size(), 1u);
    EXPECT_TRUE(fleet.sink(0).peers.empty());
  }
}

}  // namespace
}  // namespace rdmacoll::conformance
