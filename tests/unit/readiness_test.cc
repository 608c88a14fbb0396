// Which ranks are ready for an operation, and the errors of those that disagree or are missing.
#include "agreement/readiness.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>

#include "base/text.h"
#include "operation/operation.h"
#include "set_worlds.h"

namespace rdmacoll {
namespace {

class ReadinessTree : public testing::Test {
 protected:
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
    return {{0, text}, 0, SetRank(origin), subtree, {}};
  }
  DescriptorTable table_;
};

TEST_F(ReadinessTree, root_has_an_operation_when_every_rank_has_spoken) {
  const SetWorld three = set_world(0, 3);
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
  const SetWorld large = set_world(1, 40);  // children of rank 1: 17 to 32
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
  EXPECT_EQ(upward[0].origin, SetRank(1));
}

TEST_F(ReadinessTree, a_rank_that_speaks_twice_is_refused) {
  const SetWorld three = set_world(0, 3);
  Readiness root(three, table_, {});
  EXPECT_TRUE(root.add(record(descriptor("x", 4), 1), 0));
  EXPECT_FALSE(root.add(record(descriptor("x", 4), 1), 0));
}

TEST_F(ReadinessTree, a_number_that_was_never_given_is_refused) {
  const SetWorld three = set_world(0, 3);
  Readiness root(three, table_, {});
  EXPECT_FALSE(root.add({{9, ""}, 0, SetRank(1), true, {}}, 0));
}

TEST_F(ReadinessTree, conflict_waits_a_moment_and_then_names_who_has_not_spoken) {
  const SetWorld three = set_world(0, 3);
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
  const SetWorld two = set_world(0, 2);
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

// Threads may have submitted unnamed operations in another order.
TEST_F(ReadinessTree, names_are_advised_where_unnamed_operations_differ) {
  const SetWorld two = set_world(0, 2);
  for (const char* name : {"x", ""}) {
    Readiness root(two, table_, {});
    EXPECT_TRUE(root.add(record(descriptor(name, 4), 0, false), 0));
    EXPECT_TRUE(root.add(record(descriptor(name, 5), 1), 0));
    const std::string text = root.take_verdicts().at(0).status.message();
    EXPECT_EQ(text.find("several threads") != std::string::npos, name[0] == 0) << text;
  }
}

TEST_F(ReadinessTree, labels_are_named_and_need_not_agree) {
  const SetWorld three = set_world(0, 3);
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
  const SetWorld large = set_world(1, 18);  // its child: rank 17
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

TEST_F(ReadinessTree, stall_warns_once_and_then_ends_the_operation) {
  const SetWorld three = set_world(0, 3);
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
  EXPECT_EQ(verdicts[0].status.detail().ranks, (std::vector<JobRank>{JobRank(1), JobRank(2)}));
}

TEST_F(ReadinessTree, ranks_that_submitted_different_operations_are_told_of_both) {
  const SetWorld three = set_world(0, 3);
  Readiness root(three, table_, {.stall_warning = kSecond, .stall_error = 3 * kSecond});
  EXPECT_TRUE(root.add(record(descriptor("a", 4), 0, false), 0));
  EXPECT_TRUE(root.add(record(descriptor("c", 4), 1), 0));  // this one is rank 1's alone
  EXPECT_TRUE(root.add(record(descriptor("b", 4), 1), 0));
  EXPECT_TRUE(root.add(record(descriptor("b", 4), 2), 0));
  root.check(2 * kSecond);
  const auto warnings = root.take_warnings();
  ASSERT_EQ(warnings.size(), 3u);
  EXPECT_NE(warnings[0].find(", which submitted 'b' instead; still waiting"), std::string::npos)
      << warnings[0];
  EXPECT_NE(warnings[1].find(", which submitted 'a' instead; still waiting"), std::string::npos)
      << warnings[1];
  EXPECT_EQ(warnings[2].find("instead"), std::string::npos) << warnings[2];
  root.check(4 * kSecond);
  for (const auto& verdict : root.take_verdicts()) {
    const bool is_of_two = verdict.name != "c";
    EXPECT_EQ(verdict.status.message().find("instead. Every rank") != std::string::npos, is_of_two)
        << verdict.status.message();
  }
}

TEST_F(ReadinessTree, loops_of_other_lengths_end_on_all_ranks_with_one_sentence) {
  const SetWorld two = set_world(0, 2);
  Readiness root(two, table_, {.stall_warning = kSecond, .stall_error = 3 * kSecond});
  ReadyRecord ahead = record(descriptor("x", 4), 0, false);
  ahead.iteration = 2;
  EXPECT_TRUE(root.add(ahead, 0));
  EXPECT_TRUE(root.add(record(descriptor("x", 4), 1), 2 * kSecond));
  root.check(4 * kSecond);
  const auto verdicts = root.take_verdicts();
  ASSERT_EQ(verdicts.size(), 2u);
  for (const auto& verdict : verdicts) {
    EXPECT_NE(verdict.status.message().find("steps_per_execution"), std::string::npos)
        << verdict.status.message();
  }
  EXPECT_EQ(verdicts[0].ranks, std::vector{SetRank(0)});
  EXPECT_EQ(verdicts[1].ranks, std::vector{SetRank(1)});
}

}  // namespace
}  // namespace rdmacoll
