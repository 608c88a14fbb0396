// Messages of the control tree: encoding, and damage.
#include "agreement/messages.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>
#include <string_view>

#include "algorithm_names.h"

namespace rdmacoll {
namespace {
constexpr uint32_t kEpoch = 3;

struct Anything {
  template <typename T>
  operator T() const;
};
// The number of fields of a struct.
template <typename T, typename... Fields>
constexpr std::size_t fields_of() {
  if constexpr (requires { T{Fields{}..., Anything{}}; }) {
    return fields_of<T, Fields..., Anything>();
  } else {
    return sizeof...(Fields);
  }
}
// The other tests cannot see a field that is never sent. After adding a field, add it to put() and
// decode() in messages.cc, to examples() below and to mutate_message.h, and raise its number here.
static_assert(fields_of<DescriptorRef>() == 2);
static_assert(fields_of<ReadyRecord>() == 9);
static_assert(fields_of<ReadyMessage>() == 3);
static_assert(fields_of<TrialTime>() == 3);
static_assert(fields_of<InternMessage>() == 2);
static_assert(fields_of<Movement>() == 3);
static_assert(fields_of<DecisionUnit>() == 2);
static_assert(fields_of<Decision>() == 6);
static_assert(fields_of<PlannedUnit>() == 3);
static_assert(fields_of<PlannedDecision>() == 4);
static_assert(fields_of<PlanMessage>() == 4);
static_assert(fields_of<FreezeMessage>() == 1);
static_assert(fields_of<FrozenMessage>() == 4);
static_assert(fields_of<ResumeMessage>() == 4);
static_assert(fields_of<CaughtUpMessage>() == 1);
static_assert(fields_of<ReplayMessage>() == 1);
static_assert(fields_of<ResultAddressMessage>() == 2);
static_assert(fields_of<AllJoinedMessage>() == 2);
static_assert(fields_of<VerdictMessage>() == 4);
static_assert(fields_of<FailureMessage>() == 2);
static_assert(fields_of<LeavingMessage>() == 4);
static_assert(fields_of<GoodbyeMessage>() == 1);
static_assert(fields_of<FragmentMessage>() == 2);

std::vector<Message> examples() {
  ErrorDetail detail{
      JobRank(2), "node7", "connection reset", "layer/kernel", {JobRank(2), JobRank(3)}};
  return {
      ReadyMessage{{{{0, "descriptor"}, 5, SetRank(1), true, {{SetRank(1), {9, 0}}}, "a, b"},
                    {{4, ""}, 0, SetRank(2), false, {}}},
                   6,
                   {{17, 250, 2}, {18, 260, 1}}},
      InternMessage{7, "bytes"},
      Decision{11,
               {named::direct, 4096, true},
               {{{7, ""}, 0}, {{0, "full"}, 3}},
               {{1, 2}, {}, {3}},
               3,
               true},
      VerdictMessage{
          "name", 2, {SetRank(0), SetRank(3)}, Status(Code::mismatch, "they differ", detail)},
      FailureMessage{JobRank(2), Status(Code::rank_failed, "rank 2 is gone", detail)},
      LeavingMessage{JobRank(1), true, {{0, 17}, {3, 4}}, "ValueError"},
      GoodbyeMessage{{JobRank(1), false, {{0, 4}}, ""}},
      PlanMessage{3,
                  900,
                  12,
                  {{{named::ring, 64, true}, {{7, false, 5}, {8, true, 0}}, {{1, 2}, {}, {3}}, 3}}},
      FreezeMessage{3},
      FrozenMessage{3, 901, 905, 903},
      ResumeMessage{4, 901, 905, 903},
      CaughtUpMessage{904},
      FragmentMessage{true, "the end"},
      FarewellMessage{},
      AllJoinedMessage{SetRank(2), 17},
      ReplayMessage{904},
      ResultAddressMessage{905, 1 << 20}};
}

TEST(Messages, arrive_as_they_were_sent) {
  for (const Message& message : examples()) {
    const std::vector<std::byte> bytes = encode(kEpoch, message);
    Message read;
    ASSERT_TRUE(decode(kEpoch, 4, bytes, read)) << message.index();
    EXPECT_EQ(read.index(), message.index());
    EXPECT_EQ(encode(kEpoch, read), bytes);
  }
}

TEST(Messages, of_another_epoch_are_refused) {
  Message read;
  for (const Message& message : examples()) {
    EXPECT_FALSE(decode(kEpoch + 1, 4, encode(kEpoch, message), read));
  }
}

TEST(Messages, with_ranks_outside_the_world_are_refused) {
  Message read;
  EXPECT_FALSE(decode(kEpoch, 2, encode(kEpoch, LeavingMessage{JobRank(2), false, {}, ""}), read));
  EXPECT_FALSE(
      decode(kEpoch, 2, encode(kEpoch, ReadyMessage{{{{1, ""}, 0, SetRank(), true, {}}}}), read));
  EXPECT_FALSE(decode(
      kEpoch, 2,
      encode(kEpoch, ReadyMessage{{{{1, ""}, 0, SetRank(1), true, {{SetRank(2), {1}}}}}}), read));
}

TEST(Messages, with_a_negative_number_of_rows_are_refused) {
  Message read;
  EXPECT_FALSE(decode(
      kEpoch, 2,
      encode(kEpoch, ReadyMessage{{{{1, ""}, 0, SetRank(1), true, {{SetRank(1), {3, -1}}}}}}),
      read));
  EXPECT_FALSE(decode(
      kEpoch, 2, encode(kEpoch, Decision{0, {named::direct, 64}, {{{1, ""}, 0}}, {{-1}}}), read));
}

// A decision names an algorithm by its number. A number that is used again would run another one at
// ranks of another version.
TEST(Algorithms, keep_their_numbers) {
  const std::map<Algorithm, std::string_view> kNames = {
      {named::ring, "ring"},
      {named::direct, "direct"},
      {named::recursive_doubling, "recursive_doubling"},
      {named::binomial_broadcast, "binomial_broadcast"},
      {named::ring_allgather, "ring_allgather"},
      {named::halving_doubling, "halving_doubling"},
      {named::two_level, "two_level"},
      {named::pipelined_tree, "pipelined_tree"},
      {named::doubling_allgather, "doubling_allgather"},
      {named::ring_reduce_scatter, "ring_reduce_scatter"},
      {named::direct_reduce_scatter, "direct_reduce_scatter"},
      {named::pairwise_alltoall, "pairwise_alltoall"},
      {named::binomial_reduce, "binomial_reduce"},
      {named::direct_reduce, "direct_reduce"},
      {named::direct_gather, "direct_gather"},
      {named::direct_scatter, "direct_scatter"},
      {named::bruck_alltoall, "bruck_alltoall"},
      {named::parameter_server, "parameter_server"},
      {named::one_shot, "one_shot"},
      {named::flat_broadcast, "flat_broadcast"},
      {named::flat_reduce, "flat_reduce"},
      {named::direct_allgather, "direct_allgather"}};
  for (const auto& [algorithm, name] : kNames) EXPECT_EQ(name_of(algorithm), name);
  std::set<Algorithm> numbers;
  for (const AlgorithmRow& row : algorithm_table()) {
    EXPECT_TRUE(numbers.insert(row.algorithm).second) << row.name << " has a number of another";
    EXPECT_NE(row.algorithm, Algorithm::none) << row.name;
  }
}

TEST(Messages, with_an_algorithm_that_does_not_exist_are_refused) {
  Message read;
  for (int number = 0; number < 256; ++number) {
    const auto algorithm = static_cast<Algorithm>(number);
    const bool exists = algorithm == Algorithm::none || algorithm_from(name_of(algorithm));
    const auto bytes = encode(kEpoch, Decision{0, {algorithm, 64}, {{{1, ""}, 0}}, {}});
    EXPECT_EQ(decode(kEpoch, 2, bytes, read), exists) << number;
  }
}

TEST(Messages, that_are_cut_or_have_a_tail_are_refused) {
  for (const Message& message : examples()) {
    std::vector<std::byte> bytes = encode(kEpoch, message);
    Message read;
    for (std::size_t length = 0; length < bytes.size(); ++length) {
      EXPECT_FALSE(decode(kEpoch, 4, std::span(bytes).first(length), read)) << length;
    }
    bytes.push_back(std::byte{0});
    EXPECT_FALSE(decode(kEpoch, 4, bytes, read));
  }
}

TEST(Messages, that_are_damaged_anywhere_never_harm_the_reader) {
  for (unsigned seed = 1; seed <= 4000; ++seed) {
    std::mt19937 random(seed);
    const auto all = examples();
    std::vector<std::byte> bytes = encode(kEpoch, all[random() % all.size()]);
    for (unsigned flips = 1 + random() % 4; flips > 0; --flips) {
      bytes[random() % bytes.size()] = std::byte(random());
    }
    Message read;
    if (decode(kEpoch, 4, bytes, read)) {  // the damaged message is still valid
      EXPECT_EQ(encode(kEpoch, read).size(), bytes.size()) << "seed " << seed;
    }
  }
}

}  // namespace
}  // namespace rdmacoll
