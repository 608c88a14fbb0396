// Ranks without data left: the operations that other ranks may still run, and the end of the join.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "agreement/readiness.h"
#include "base/text.h"
#include "operation/operation.h"
#include "set_worlds.h"

namespace rdmacoll {
namespace {

using testing::HasSubstr;

ReadyRecord record_of(Kind kind, const std::string& name, int origin, ReduceOp op = ReduceOp::sum) {
  Request request;
  request.kind = kind;
  request.op = op;
  request.name = name;
  request.tensors = {{nullptr, nullptr, {4}, ""}};
  return {{0, encode_descriptor(request)}, 0, SetRank(origin), false, {}};
}
ReadyRecord sum_of(const std::string& name, int origin) {
  return record_of(Kind::allreduce, name, origin);
}

ReadyRecord join_of(int origin, int64_t next_number) {
  ReadyRecord record;
  record.origin = SetRank(origin);
  record.iteration = next_number;
  record.joins = true;
  return record;
}

class Joining : public testing::Test {
 protected:
  const SetWorld three_ = set_world(0, 3);
  const DescriptorTable table_{};
  Readiness root_{three_, table_, {10 * kSecond, 600 * kSecond}};
};

TEST_F(Joining, makes_a_rank_ready_for_every_sum) {
  EXPECT_TRUE(root_.add(sum_of("x", 0), 0));
  EXPECT_TRUE(root_.add(join_of(2, 7), 0));
  EXPECT_TRUE(root_.take_ready().empty());
  EXPECT_TRUE(root_.add(sum_of("x", 1), 0));
  ASSERT_EQ(root_.take_ready().size(), 1u);
  EXPECT_TRUE(root_.add(sum_of("y", 1), 0));
  EXPECT_TRUE(root_.add(join_of(0, 9), 0));  // "y" waits for rank 0 alone, so it is ready
  ASSERT_EQ(root_.take_ready().size(), 1u);
  EXPECT_FALSE(root_.have_all_joined());
  EXPECT_FALSE(root_.add(join_of(0, 9), 0)) << "twice";
  EXPECT_TRUE(root_.add(join_of(1, 8), 0));
  ASSERT_TRUE(root_.have_all_joined());
  EXPECT_EQ(root_.all_joined().last, SetRank(1));
  EXPECT_EQ(root_.all_joined().next_number, 9);
  root_.part();
  EXPECT_TRUE(root_.add(sum_of("x", 0), 0));
  EXPECT_TRUE(root_.take_ready().empty());
}

TEST_F(Joining, ends_what_needs_data_with_its_name) {
  EXPECT_TRUE(root_.add(join_of(2, 0), 0));
  const ReadyRecord first = record_of(Kind::broadcast, "weights", 1);
  EXPECT_TRUE(root_.add(first, 0));
  auto verdicts = root_.take_verdicts();
  ASSERT_EQ(verdicts.size(), 1u);
  EXPECT_EQ(verdicts[0].status.code(), Code::invalid);
  EXPECT_THAT(verdicts[0].status.message(), HasSubstr("needs data of rank 2"));
  EXPECT_EQ(verdicts[0].ranks, std::vector{SetRank(1)});
  EXPECT_TRUE(root_.add(first, 0)) << "rank 1 has heard it, and tries again";
  EXPECT_TRUE(root_.take_verdicts().empty()) << "rank 0 has still to hear of the first";
  EXPECT_TRUE(root_.add(record_of(Kind::broadcast, "weights", 0), 0));
  verdicts = root_.take_verdicts();
  ASSERT_EQ(verdicts.size(), 2u);
  EXPECT_EQ(verdicts[0].ranks, std::vector{SetRank(0)});
  EXPECT_EQ(verdicts[1].ranks, std::vector{SetRank(1)});
  EXPECT_TRUE(root_.take_ready().empty());
}

TEST_F(Joining, ends_what_zeros_would_change) {
  EXPECT_TRUE(root_.add(join_of(2, 0), 0));
  for (const ReduceOp op : {ReduceOp::min, ReduceOp::max, ReduceOp::product}) {
    for (const int origin : {0, 1}) {
      EXPECT_TRUE(root_.add(record_of(Kind::allreduce, "x", origin, op), 0));
      EXPECT_EQ(root_.take_verdicts().size(), 1u) << name_of(op);
    }
  }
  EXPECT_TRUE(root_.take_ready().empty());
}

TEST_F(Joining, leaves_alone_what_its_rank_has_submitted_before) {
  EXPECT_TRUE(root_.add(record_of(Kind::broadcast, "weights", 2), 0));
  EXPECT_TRUE(root_.add(join_of(2, 1), 0));
  EXPECT_TRUE(root_.add(record_of(Kind::broadcast, "weights", 0), 0));
  EXPECT_TRUE(root_.add(record_of(Kind::broadcast, "weights", 1), 0));
  EXPECT_TRUE(root_.take_verdicts().empty());
  EXPECT_EQ(root_.take_ready().size(), 1u);
}

TEST_F(Joining, waits_for_what_its_rank_has_submitted_and_says_again) {
  EXPECT_TRUE(root_.add(join_of(2, 1), 0));
  root_.await_all({"rows", 0});
  for (const int origin : {0, 1}) {
    EXPECT_TRUE(root_.add(record_of(Kind::broadcast, "rows", origin), 0));
    EXPECT_TRUE(root_.take_ready().empty());
  }
  EXPECT_TRUE(root_.add(record_of(Kind::broadcast, "rows", 2), 0));
  EXPECT_TRUE(root_.take_verdicts().empty());
  EXPECT_EQ(root_.take_ready().size(), 1u);
  EXPECT_TRUE(root_.add(record_of(Kind::broadcast, "rows", 0), 0));
  EXPECT_EQ(root_.take_verdicts().size(), 1u) << "the next one needs its data as ever";
}

TEST_F(Joining, leaves_a_mismatch_what_it_is) {
  EXPECT_TRUE(root_.add(join_of(2, 0), 0));
  EXPECT_TRUE(root_.add(sum_of("x", 0), 0));
  EXPECT_TRUE(root_.add(record_of(Kind::broadcast, "x", 1), 0));
  const auto verdicts = root_.take_verdicts();
  ASSERT_EQ(verdicts.size(), 1u);
  EXPECT_EQ(verdicts[0].status.code(), Code::mismatch);
  EXPECT_EQ(verdicts[0].ranks, (std::vector{SetRank(0), SetRank(1)}));
}

TEST_F(Joining, waits_while_others_go_on_and_no_longer) {
  EXPECT_TRUE(root_.add(join_of(2, 0), 0));
  EXPECT_EQ(root_.next_deadline(), 10 * kSecond);
  for (const int origin : {0, 1}) EXPECT_TRUE(root_.add(sum_of("x", origin), 9 * kSecond));
  EXPECT_EQ(root_.next_deadline(), 19 * kSecond);
  root_.check(18 * kSecond);
  EXPECT_TRUE(root_.take_warnings().empty());
  for (const Nanoseconds now : {19 * kSecond, 30 * kSecond}) root_.check(now);
  const auto warnings = root_.take_warnings();
  ASSERT_EQ(warnings.size(), 1u) << "once";
  EXPECT_THAT(warnings[0], HasSubstr("join was called by 1 of 3 ranks, and ranks 0, 1"));
  EXPECT_THAT(warnings[0], HasSubstr("neither joined nor submitted anything for 10 s"));
  EXPECT_EQ(root_.next_deadline(), 609 * kSecond);
  root_.check(609 * kSecond);
  const auto verdicts = root_.take_verdicts();
  ASSERT_EQ(verdicts.size(), 1u);
  EXPECT_EQ(verdicts[0].status.code(), Code::stalled);
  EXPECT_EQ(verdicts[0].iteration, kJoinIteration);
  EXPECT_EQ(verdicts[0].ranks, std::vector{SetRank(2)});
  EXPECT_EQ(verdicts[0].status.detail().ranks, (std::vector<JobRank>{JobRank(0), JobRank(1)}));
}

TEST(JoiningBelowTheRoot, passes_everything_on_once_somebody_has_joined) {
  const SetWorld large = set_world(1, 40);
  const DescriptorTable table;
  Readiness node(large, table, {});
  EXPECT_TRUE(node.add(sum_of("x", 1), 0));
  EXPECT_TRUE(node.take_upward().empty());
  EXPECT_TRUE(node.add(join_of(17, 3), 0));
  EXPECT_TRUE(node.add(sum_of("x", 18), 0));
  const auto upward = node.take_upward();
  ASSERT_EQ(upward.size(), 3u);  // "x" of rank 1, the join, "x" of rank 18
  EXPECT_EQ(upward[0].origin, SetRank(1));
  EXPECT_TRUE(upward[1].joins);
  EXPECT_EQ(upward[2].origin, SetRank(18));
}

// A rank can hear the verdict on an operation that a plan has started before other ranks below the
// node have submitted it. The rank then submits its next operation.
TEST(JoiningBelowTheRoot, passes_on_what_a_rank_says_after_a_verdict) {
  const SetWorld large = set_world(1, 40);
  const DescriptorTable table;
  Readiness node(large, table, {});
  EXPECT_TRUE(node.add(sum_of("x", 1), 0));
  EXPECT_TRUE(node.add(sum_of("x", 17), 0));
  EXPECT_TRUE(node.take_upward().empty());
  EXPECT_TRUE(node.add(sum_of("x", 17), 0));
  EXPECT_TRUE(node.add(sum_of("x", 18), 0));
  EXPECT_TRUE(node.add(sum_of("x", 1), 0));
  const auto upward = node.take_upward();
  std::vector<int> origins;
  for (const ReadyRecord& record : upward) origins.push_back(record.origin.value());
  EXPECT_EQ(origins, (std::vector<int>{1, 17, 17, 18, 1}));
}

// When ranks have joined, the root may answer a rank at once. This rank may then be several
// operations of a name ahead of its children. The children's next records are about earlier
// operations than the rank's next record.
TEST(BelowTheRoot, operations_of_a_name_are_not_gathered_with_later_ones) {
  const SetWorld large = set_world(1, 18);  // its child: rank 17
  const DescriptorTable table;
  for (int ahead = 1; ahead <= 3; ++ahead) {
    Readiness node(large, table, {10 * kSecond, 600 * kSecond});
    const auto said = [&](int origin) {
      EXPECT_TRUE(node.add(sum_of("x", origin), 0));
      std::vector<std::pair<int, bool>> upward;
      for (const ReadyRecord& record : node.take_upward()) {
        upward.emplace_back(record.origin.value(), record.subtree);
      }
      return upward;
    };
    using Said = std::vector<std::pair<int, bool>>;
    EXPECT_EQ(said(1), Said());
    EXPECT_EQ(said(1), Said({{1, false}, {1, false}}));
    for (int i = 1; i < ahead; ++i) EXPECT_EQ(said(1), Said({{1, false}}));
    for (int i = 0; i <= ahead; ++i) EXPECT_EQ(said(17), Said({{17, false}})) << i;
    EXPECT_EQ(node.pending(), 0u);
    EXPECT_EQ(node.next_deadline(), kNever);
    EXPECT_EQ(said(1), Said());
    EXPECT_EQ(said(17), Said({{1, true}}));
  }
}

}  // namespace
}  // namespace rdmacoll
