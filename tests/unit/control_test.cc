// Messages of the control tree: encoding, damage, and the readiness of ranks.
#include <gtest/gtest.h>

#include <random>

#include "agreement/decision_log.h"
#include "agreement/messages.h"
#include "agreement/readiness.h"
#include "base/text.h"
#include "operation/operation.h"

namespace rdmacoll {
namespace {
constexpr uint32_t kEpoch = 3;

std::vector<Message> examples() {
  ErrorDetail detail{2, "node7", "connection reset", "layer/kernel", {2, 3}};
  return {
      ReadyMessage{
          {{{0, "descriptor"}, 5, 1, true, {{1, {9, 0}}}, "a, b"}, {{4, ""}, 0, 2, false, {}}}, 6},
      InternMessage{7, "bytes"},
      Decision{11, Algorithm::direct, 4096, {{{7, ""}, 0}, {{0, "full"}, 3}}, {{1, 2}, {}, {3}}, 3},
      VerdictMessage{"name", 2, {0, 3}, Status(Code::mismatch, "they differ", detail)},
      FailureMessage{2, Status(Code::rank_failed, "rank 2 is gone", detail)},
      LeavingMessage{1, true, {{0, 17}, {3, 4}}, "ValueError"},
      GoodbyeMessage{{1, false, {{0, 4}}, ""}},
      PlanMessage{
          3, 900, 12, {{Algorithm::ring, 64, {{7, false, 5}, {8, true, 0}}, {{1, 2}, {}, {3}}, 3}}},
      FreezeMessage{3},
      FrozenMessage{3, 901, 905},
      ResumeMessage{4, 901, 905},
      CaughtUpMessage{904},
      FragmentMessage{true, "the end"},
      FarewellMessage{},
      AllJoinedMessage{2, 17},
      ReplayMessage{904},
      PlaceMessage{905, 1 << 20}};
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
  EXPECT_FALSE(decode(kEpoch, 2, encode(kEpoch, LeavingMessage{2, false, {}, ""}), read));
  EXPECT_FALSE(decode(kEpoch, 2, encode(kEpoch, ReadyMessage{{{{1, ""}, 0, -1, true, {}}}}), read));
  EXPECT_FALSE(
      decode(kEpoch, 2, encode(kEpoch, ReadyMessage{{{{1, ""}, 0, 1, true, {{2, {1}}}}}}), read));
}

TEST(Messages, with_a_negative_number_of_rows_are_refused) {
  Message read;
  EXPECT_FALSE(decode(kEpoch, 2,
                      encode(kEpoch, ReadyMessage{{{{1, ""}, 0, 1, true, {{1, {3, -1}}}}}}), read));
  EXPECT_FALSE(decode(
      kEpoch, 2, encode(kEpoch, Decision{0, Algorithm::direct, 64, {{{1, ""}, 0}}, {{-1}}}), read));
}

TEST(Messages, with_an_algorithm_that_does_not_exist_are_refused) {
  Message read;
  for (int number = 0; number < 256; ++number) {
    const auto algorithm = static_cast<Algorithm>(number);
    const bool exists = algorithm == Algorithm::none || algorithm_from(name_of(algorithm));
    const auto bytes = encode(kEpoch, Decision{0, algorithm, 64, {{{1, ""}, 0}}, {}});
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

// ---- readiness ----

class ReadinessTree : public testing::Test {
 protected:
  static World world(int rank, int size) {
    World world{"job", kEpoch, rank, {}};
    for (int r = 0; r < size; ++r) world.members.push_back({cat("host", r), r, 0});
    return world;
  }
  static std::string descriptor(const std::string& name, int64_t elements) {
    Request request;
    request.name = name;
    request.tensors = {{nullptr, nullptr, {elements}, ""}};
    return encode_descriptor(request);
  }
  static std::string descriptor_with(const std::string& manifest) {
    Request request;
    request.name = "bucket_0";
    request.manifest = manifest;
    request.tensors = {{nullptr, nullptr, {4}, ""}};
    return encode_descriptor(request);
  }
  static ReadyRecord record(const std::string& text, int origin, bool subtree = true) {
    return {{0, text}, 0, origin, subtree, {}};
  }
  DescriptorTable table_;
};

TEST_F(ReadinessTree, root_has_an_operation_when_every_rank_has_spoken) {
  const World three = world(0, 3);
  Readiness root(three, table_, {});
  const std::string x = descriptor("x", 4);
  EXPECT_TRUE(root.add(record(x, 0, false), 0));
  EXPECT_TRUE(root.add(record(x, 2), 0));
  EXPECT_TRUE(root.take_ready().empty());
  EXPECT_TRUE(root.add(record(x, 1), 0));
  const auto ready = root.take_ready();
  ASSERT_EQ(ready.size(), 1u);
  EXPECT_EQ(ready[0].key.name, "x");
  EXPECT_EQ(root.pending(), 0u);
}

TEST_F(ReadinessTree, inner_node_speaks_once_for_its_whole_subtree) {
  const World large = world(1, 40);  // children of rank 1: 17 to 32
  Readiness node(large, table_, {});
  const std::string x = descriptor("x", 4);
  EXPECT_TRUE(node.add(record(x, 1, false), 0));
  for (int child = 17; child <= 32; ++child) {
    EXPECT_TRUE(node.take_upward().empty());
    EXPECT_TRUE(node.add(record(x, child), 0));
  }
  const auto upward = node.take_upward();
  ASSERT_EQ(upward.size(), 1u);
  EXPECT_TRUE(upward[0].subtree);
  EXPECT_EQ(upward[0].origin, 1);
}

TEST_F(ReadinessTree, a_rank_that_speaks_twice_is_refused) {
  const World three = world(0, 3);
  Readiness root(three, table_, {});
  EXPECT_TRUE(root.add(record(descriptor("x", 4), 1), 0));
  EXPECT_FALSE(root.add(record(descriptor("x", 4), 1), 0));
}

TEST_F(ReadinessTree, a_number_that_was_never_given_is_refused) {
  const World three = world(0, 3);
  Readiness root(three, table_, {});
  EXPECT_FALSE(root.add({{9, ""}, 0, 1, true, {}}, 0));
}

TEST_F(ReadinessTree, conflict_waits_a_moment_and_then_names_who_has_not_spoken) {
  const World three = world(0, 3);
  Readiness root(three, table_, {});
  EXPECT_TRUE(root.add(record(descriptor("x", 4), 0, false), 0));
  EXPECT_TRUE(root.add(record(descriptor("x", 5), 1), 0));
  root.check(kMillisecond);
  EXPECT_TRUE(root.take_verdicts().empty());
  EXPECT_EQ(root.next_deadline(), 50 * kMillisecond);
  root.check(60 * kMillisecond);
  const auto verdicts = root.take_verdicts();
  ASSERT_EQ(verdicts.size(), 1u);
  EXPECT_EQ(verdicts[0].status.code(), Code::mismatch);
  EXPECT_NE(verdicts[0].status.message().find("rank 2 (host2"), std::string::npos);
  // The late rank gets the same answer. Then the operation is over.
  EXPECT_TRUE(root.add(record(descriptor("x", 4), 2), 70 * kMillisecond));
  EXPECT_EQ(root.take_verdicts().size(), 1u);
  EXPECT_EQ(root.pending(), 0u);
}

TEST_F(ReadinessTree, manifests_that_differ_are_told_instead_of_the_shapes) {
  const World two = world(0, 2);
  Readiness root(two, table_, {});
  EXPECT_TRUE(root.add(record(descriptor_with("2 gradients (digest 1)"), 0, false), 0));
  EXPECT_TRUE(root.add(record(descriptor_with("3 gradients (digest 2)"), 1), 0));
  const auto verdicts = root.take_verdicts();
  ASSERT_EQ(verdicts.size(), 1u);
  const std::string& text = verdicts[0].status.message();
  EXPECT_NE(text.find("rank 0 has 2 gradients (digest 1), sum; rank 1 has 3 gradients (digest 2)"),
            std::string::npos)
      << text;
  EXPECT_EQ(text.find("(4,)"), std::string::npos) << text;
}

TEST_F(ReadinessTree, labels_are_named_and_need_not_agree) {
  const World three = world(0, 3);
  Readiness root(three, table_, {.stall_warning = kSecond, .stall_error = 3 * kSecond});
  const std::string x = descriptor("x", 4);
  for (int origin : {2, 1, 0}) {
    ReadyRecord labelled = record(x, origin, origin != 0);
    labelled.labels = origin == 2 ? "conv/kernel, conv/bias and 4 more" : "conv_1/kernel";
    EXPECT_TRUE(root.add(labelled, 0));
  }
  EXPECT_EQ(root.take_ready().size(), 1u);
  // The second time, the descriptor and its labels are known. Here the root itself is late.
  EXPECT_TRUE(root.add(record(x, 1), kSecond));
  root.check(3 * kSecond);
  const auto warnings = root.take_warnings();
  ASSERT_EQ(warnings.size(), 1u);
  EXPECT_NE(warnings[0].find("'x' (conv_1/kernel; allreduce of float32 (4,), sum) was submitted"),
            std::string::npos)
      << warnings[0];
  root.check(5 * kSecond);
  EXPECT_EQ(root.take_verdicts().at(0).status.detail().tensor, "x (conv_1/kernel)");
}

TEST_F(ReadinessTree, an_inner_node_passes_labels_on_while_the_root_does_not_know_them) {
  const World large = world(1, 18);  // its child: rank 17
  Readiness node(large, table_, {});
  for (const char* name : {"x", ""}) {
    const std::string text = descriptor(name, 4);
    ReadyRecord own = record(text, 1, false);
    own.labels = "conv/kernel";
    EXPECT_TRUE(node.add(own, 0));
    EXPECT_TRUE(node.add(record(text, 17), 0));
    EXPECT_EQ(node.take_upward().at(0).labels, "conv/kernel");
    bool is_new = false;
    table_.intern(text, is_new);
    EXPECT_TRUE(node.add(own, 0));
    EXPECT_TRUE(node.add(record(text, 17), 0));
    // An unnamed operation may be another one of the same kind and shape.
    EXPECT_EQ(node.take_upward().at(0).labels, name[0] == 0 ? "conv/kernel" : "");
  }
}

TEST(Labels, of_long_lists_are_counted_and_long_ones_cut_between_characters) {
  Request request;
  EXPECT_EQ(request.labels(), "");
  std::string umlauts;
  for (int i = 0; i < 100; ++i) umlauts += "\xc3\xa4";
  for (const std::string& label : {std::string("a"), "x" + umlauts, std::string("c")}) {
    request.tensors.push_back({nullptr, nullptr, {4}, label});
  }
  EXPECT_EQ(request.labels(), "a, x" + umlauts.substr(0, 118) + " and 1 more");
  request.name = "a";  // said already
  EXPECT_EQ(request.labels(), "x" + umlauts.substr(0, 118) + ", c");
}

TEST_F(ReadinessTree, stall_warns_once_and_then_ends_the_operation) {
  const World three = world(0, 3);
  Readiness root(three, table_, {.stall_warning = kSecond, .stall_error = 3 * kSecond});
  EXPECT_TRUE(root.add(record(descriptor("x", 4), 0, false), 0));
  root.check(2 * kSecond);
  root.check(2 * kSecond + 1);
  const auto warnings = root.take_warnings();
  ASSERT_EQ(warnings.size(), 1u);
  EXPECT_NE(warnings[0].find("ranks 1, 2"), std::string::npos);
  root.check(3 * kSecond);
  const auto verdicts = root.take_verdicts();
  ASSERT_EQ(verdicts.size(), 1u);
  EXPECT_EQ(verdicts[0].status.code(), Code::stalled);
  EXPECT_EQ(verdicts[0].status.detail().ranks, (std::vector<int>{1, 2}));
}

// ---- decisions ----

class Decisions : public ReadinessTree {
 protected:
  ReadyUnit unit(const std::string& name, int64_t elements) {
    return {{name, 0}, descriptor(name, elements), {}};
  }
  World world_ = world(0, 4);
};

TEST_F(Decisions, small_ones_that_wait_together_share_a_batch) {
  DecisionLog log(world_, table_, {});
  for (const char* name : {"a", "b", "c"}) log.offer(unit(name, 10));
  log.offer(unit("large", 1 << 20));
  const auto first = log.form(true);
  ASSERT_TRUE(first);
  EXPECT_EQ(first->decision.units.size(), 3u);
  EXPECT_EQ(first->interns.size(), 3u);
  const auto second = log.form(true);
  ASSERT_TRUE(second);
  EXPECT_EQ(second->decision.units.size(), 1u);
  EXPECT_EQ(second->decision.sequence, 1u);
  EXPECT_FALSE(log.form(true));
}

// The bits of a sum must not depend on the operations that are ready at the same time.
TEST_F(Decisions, a_batch_is_summed_in_the_order_of_each_of_its_operations) {
  const auto units_of_first = [&](const World& world, std::vector<Forced> forced,
                                  const Tuning& tuning = {}) {
    DecisionLog::Rules rules{.tuning = tuning};
    rules.forced = std::move(forced);
    DescriptorTable table;
    DecisionLog log(world, table, rules);
    for (const char* name : {"a", "b", "c"}) log.offer(unit(name, 2500));  // 10,000 bytes each
    return log.form(false)->decision.units.size();
  };
  const World many = world(0, 16);
  EXPECT_EQ(units_of_first(many, {}), 3u);
  EXPECT_EQ(units_of_first(world_, {}, {.direct_bytes_network = 20'000}), 3u);  // no ring then
  EXPECT_EQ(units_of_first(many, {{Algorithm::ring}}), 1u);
  EXPECT_EQ(units_of_first(many, {{Algorithm::direct, 20'000}, {Algorithm::ring}}), 2u);
  EXPECT_EQ(units_of_first(many, {{Algorithm::direct, 9'999}, {Algorithm::ring}}), 1u);
  World by_nodes = world(0, 6);
  for (int rank = 0; rank < 6; ++rank) by_nodes.members[rank].node = rank / 3;
  EXPECT_EQ(units_of_first(by_nodes, {}), 1u);  // no power of two, so the batch keeps its own order
  for (int rank = 0; rank < 6; ++rank) by_nodes.members[rank].node = rank / 4;
  EXPECT_EQ(units_of_first(by_nodes, {}), 3u);
}

TEST_F(Decisions, known_descriptors_are_numbers) {
  DecisionLog log(world_, table_, {});
  log.offer(unit("a", 10));
  EXPECT_EQ(log.form(true)->interns.size(), 1u);
  log.offer(unit("a", 10));
  const auto again = log.form(true);
  EXPECT_TRUE(again->interns.empty());
  EXPECT_EQ(again->decision.units[0].descriptor.id, 1u);
}

TEST_F(Decisions, a_pool_that_cuts_segments_short_is_noticed) {
  for (const uint64_t segment_bytes_max : {uint64_t{64}, uint64_t{4} << 20}) {
    DecisionLog::Rules rules;
    rules.segment_bytes_max = segment_bytes_max;
    DecisionLog log(world_, table_, rules);
    log.offer(unit("large", 1 << 20));
    const auto formed = log.form(false);
    EXPECT_LE(formed->decision.segment_bytes, segment_bytes_max);
    EXPECT_EQ(formed->is_cut_short, segment_bytes_max == 64);
    log.offer(unit("small", 4));
    EXPECT_FALSE(log.form(false)->is_cut_short);
  }
}

TEST_F(Decisions, numbers_of_rows_that_do_not_fit_name_the_rank) {
  Request request;
  request.kind = Kind::alltoall;
  request.tensors = {{nullptr, nullptr, {6, 2}, ""}};
  DecisionLog log(world_, table_, {});
  const std::vector<int64_t> four{1, 2, 0, 3};
  ReadyUnit unit{{"a", 0}, encode_descriptor(request), {four, four, {1, 2}, four}};
  EXPECT_EQ(log.offer(unit), 2);
  unit.rows.clear();
  EXPECT_EQ(log.offer(unit), 0);
  EXPECT_FALSE(log.waiting());
  unit.rows.assign(4, four);
  EXPECT_EQ(log.offer(unit), -1);
  EXPECT_EQ(log.form(true)->decision.rows, unit.rows);
}

TEST_F(Decisions, a_gap_in_the_sequence_is_refused) {
  DecisionLog log(world_, table_, {});
  EXPECT_TRUE(log.accept(Decision{0, Algorithm::none, 0, {}, {}}));
  EXPECT_FALSE(log.accept(Decision{2, Algorithm::none, 0, {}, {}}));
}

TEST_F(Decisions, canonical_order_never_chooses_another) {
  for (const bool wide : {false, true}) {
    for (uint64_t bytes = 1; bytes < (1u << 28); bytes *= 3) {
      for (const bool one_node : {false, true}) {
        const Facts facts{
            .ranks = 5, .one_node = one_node, .bytes = bytes, .wide_sums = wide, .canonical = true};
        const Choice choice = choose(AlgorithmRow::Result::sum, {}, facts);
        EXPECT_NE(choice.algorithm, Algorithm::ring);
        EXPECT_TRUE(adds_in_canonical_order(choice, facts));
        EXPECT_EQ(choose(AlgorithmRow::Result::own_sum, {}, facts).algorithm,
                  Algorithm::direct_reduce_scatter);
        const Choice reduce = choose(AlgorithmRow::Result::root_sum, {}, facts);
        EXPECT_TRUE(adds_in_canonical_order(reduce, facts));
      }
    }
  }
}

}  // namespace
}  // namespace rdmacoll
