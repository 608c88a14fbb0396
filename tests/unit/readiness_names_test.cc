#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "agreement/readiness.h"
#include "base/text.h"
#include "operation/listing.h"
#include "operation/operation.h"
#include "set_worlds.h"

namespace rdmacoll {
namespace {

// One letter stands for each digest. The digests are of the order of names, of their set, and of
// both without counters.
std::string listing(const std::string& order, const std::string& names,
                    const std::string& bare_order, const std::string& bare,
                    const std::string& labels) {
  std::string text;
  for (const std::string& digest : {order, names, bare_order, bare}) {
    text += std::string(8 - digest.size(), '0') + digest;
  }
  return text + labels;
}

const std::string kPlain = listing("1", "2", "3", "4", "\na\nb\nc_1\nd");

TEST(Listings, are_alike_by_their_digests) {
  EXPECT_EQ(likeness(kPlain, kPlain), Likeness::same);
  EXPECT_EQ(likeness(kPlain, listing("9", "2", "9", "4", "")), Likeness::reordered);
  EXPECT_EQ(likeness(kPlain, listing("9", "2", "3", "4", "")), Likeness::reordered);
  EXPECT_EQ(likeness(kPlain, listing("9", "9", "3", "4", "")), Likeness::same);
  EXPECT_EQ(likeness(kPlain, listing("9", "9", "9", "4", "")), Likeness::reordered);
  EXPECT_EQ(likeness(kPlain, listing("9", "9", "9", "9", "")), Likeness::other);
}

TEST(Listings, are_described_at_the_first_three_differences) {
  const std::string other = listing("9", "2", "9", "4", "\na\nc_1\nb\nx\ny");
  EXPECT_EQ(describe_difference("rank 0", kPlain, "rank 1", other),
            "rank 0: b, c_1, d; rank 1: c_1, b, x");
  EXPECT_EQ(describe_difference("rank 0", kPlain, "rank 1", kPlain.substr(0, 32)),
            "rank 0 and rank 1 differ behind the first names");
}

class NamesOfVariables : public testing::Test {
 protected:
  static ReadyRecord record(int origin, const std::string& names, int64_t iteration = 0) {
    Request request;
    request.name = "bucket_0";
    request.tensors = {{nullptr, nullptr, {4}, ""}};
    ReadyRecord record{{0, encode_descriptor(request)}, iteration, SetRank(origin), false, {}};
    record.listing = names;
    return record;
  }
  const std::string reordered_ = listing("9", "2", "9", "4", "\nb\na\nc_1\nd");
  const std::string other_ = listing("8", "8", "8", "8", "\nx\ny\nz\nd");
  DescriptorTable table_;
};

TEST_F(NamesOfVariables, in_another_order_are_an_error_on_all_ranks) {
  const SetWorld three = set_world(0, 3);
  Readiness root(three, table_, {});
  EXPECT_TRUE(root.add(record(0, kPlain), 0));
  EXPECT_TRUE(root.add(record(1, kPlain), 0));
  EXPECT_TRUE(root.take_verdicts().empty());
  EXPECT_TRUE(root.add(record(2, reordered_), 0));
  EXPECT_TRUE(root.take_ready().empty());
  const auto verdicts = root.take_verdicts();
  ASSERT_EQ(verdicts.size(), 1u);
  EXPECT_EQ(verdicts[0].ranks, three.ranks());
  EXPECT_EQ(verdicts[0].status.code(), Code::mismatch);
  const std::string& text = verdicts[0].status.message();
  EXPECT_NE(text.find("'bucket_0' in different orders: ranks 0, 1: a, b; rank 2: b, a"),
            std::string::npos)
      << text;
  EXPECT_NE(text.find("RDMACOLL_CHECK_NAMES=false"), std::string::npos) << text;
}

TEST_F(NamesOfVariables, that_change_on_one_rank_are_compared_with_those_said_before) {
  const SetWorld two = set_world(0, 2);
  Readiness root(two, table_, {});
  for (int origin : {0, 1}) EXPECT_TRUE(root.add(record(origin, kPlain), 0));
  for (int origin : {1, 0}) EXPECT_TRUE(root.add(record(origin, ""), 0));
  EXPECT_EQ(root.take_ready().size(), 2u);
  EXPECT_TRUE(root.add(record(0, ""), 0));
  EXPECT_TRUE(root.add(record(1, reordered_), 0));
  EXPECT_TRUE(root.take_ready().empty());
  EXPECT_EQ(root.take_verdicts().size(), 1u);
}

TEST_F(NamesOfVariables, that_change_are_compared_with_those_of_each_other_rank) {
  const SetWorld three = set_world(0, 3);
  for (const std::vector<int>& order : {std::vector{0, 1, 2}, {1, 2, 0}, {2, 1, 0}}) {
    Readiness root(three, table_, {});
    // Rank 1 has other names. All ranks go on, and two of them have no reason to repeat theirs.
    for (int origin : order)
      EXPECT_TRUE(root.add(record(origin, origin == 1 ? other_ : kPlain), 0));
    for (int origin : order) EXPECT_TRUE(root.add(record(origin, ""), 0));
    EXPECT_EQ(root.take_ready().size(), 2u);
    for (int origin : order)
      EXPECT_TRUE(root.add(record(origin, origin == 1 ? reordered_ : ""), 0));
    EXPECT_TRUE(root.take_ready().empty());
    const auto verdicts = root.take_verdicts();
    ASSERT_EQ(verdicts.size(), 1u);
    EXPECT_NE(verdicts[0].status.message().find("ranks 0, 2: a, b; rank 1: b, a"),
              std::string::npos)
        << verdicts[0].status.message();
  }
}

TEST_F(NamesOfVariables, of_any_two_ranks_are_compared) {
  const SetWorld three = set_world(0, 3);
  Readiness root(three, table_, {});
  EXPECT_TRUE(root.add(record(0, other_), 0));
  EXPECT_TRUE(root.add(record(1, kPlain), 0));
  EXPECT_TRUE(root.add(record(2, reordered_), 0));
  EXPECT_TRUE(root.take_ready().empty());
  const auto verdicts = root.take_verdicts();
  ASSERT_EQ(verdicts.size(), 1u);
  EXPECT_NE(verdicts[0].status.message().find("rank 1: a, b; rank 2: b, a"), std::string::npos)
      << verdicts[0].status.message();
}

TEST_F(NamesOfVariables, that_differ_otherwise_are_told_once) {
  const SetWorld two = set_world(0, 2);
  Readiness root(two, table_, {});
  for (int64_t iteration : {0, 1}) {
    EXPECT_TRUE(root.add(record(0, kPlain, iteration), 0));
    EXPECT_TRUE(root.add(record(1, other_, iteration), 0));
  }
  EXPECT_EQ(root.take_ready().size(), 2u);
  EXPECT_TRUE(root.take_verdicts().empty());
  const auto warnings = root.take_warnings();
  ASSERT_EQ(warnings.size(), 1u);
  EXPECT_NE(warnings[0].find("rank 0: a, b, c_1; rank 1: x, y, z"), std::string::npos)
      << warnings[0];
}

TEST_F(NamesOfVariables, say_which_tensor_behind_the_first_ones_differs) {
  const auto said = [](const std::vector<std::vector<int64_t>>& last, const std::string& names) {
    const SetWorld three = set_world(0, 3);
    DescriptorTable table;
    Readiness root(three, table, {});
    for (int origin : {0, 1, 2}) {
      Request request;
      request.name = "all";
      for (int64_t rows : {1, 2, 3, 4}) request.tensors.push_back({nullptr, nullptr, {rows}, ""});
      request.tensors.push_back({nullptr, nullptr, last[static_cast<std::size_t>(origin)], ""});
      request.tensors.push_back({nullptr, nullptr, {6}, ""});
      ReadyRecord record{{0, encode_descriptor(request)}, 0, SetRank(origin), false, {}};
      record.listing = names;
      root.add(record, 0);
    }
    const auto verdicts = root.take_verdicts();
    return verdicts.size() == 1 ? verdicts[0].status.message() : std::string();
  };
  const std::string names = listing("1", "2", "3", "4", "\na\nb\nc\nd\ndense/kernel\nf");
  const std::string plain = said({{5, 7}, {5, 7}, {5, 8}}, "");
  EXPECT_NE(
      plain.find("ranks 0, 1 have allreduce of float32 (1,) (2,) (3,) (4,) 6 tensors, of which "
                 "number 5 is (5, 7)"),
      std::string::npos)
      << plain;
  EXPECT_NE(plain.find("rank 2 has allreduce of float32 (1,) (2,) (3,) (4,) 6 tensors, of which "
                       "number 5 is (5, 8)"),
            std::string::npos)
      << plain;
  const std::string named = said({{5, 7}, {9}, {5, 8}}, names);
  for (const char* words : {"number 5 (dense/kernel) is (5, 7)", "number 5 (dense/kernel) is (9,)",
                            "number 5 (dense/kernel) is (5, 8)"}) {
    EXPECT_NE(named.find(words), std::string::npos) << named;
  }
}

TEST_F(NamesOfVariables, go_to_the_root_as_they_are) {
  const SetWorld large = set_world(1, 18);  // its child: rank 17
  for (const std::string& names : {kPlain, reordered_, std::string()}) {
    Readiness node(large, table_, {});
    EXPECT_TRUE(node.add(record(1, kPlain), 0));
    EXPECT_TRUE(node.add(record(17, names), 0));
    const auto upward = node.take_upward();
    if (names == kPlain) {
      ASSERT_EQ(upward.size(), 1u);
      EXPECT_TRUE(upward[0].subtree);
      EXPECT_EQ(upward[0].listing, kPlain);
      continue;
    }
    ASSERT_EQ(upward.size(), 2u);
    EXPECT_EQ(upward[0].listing, kPlain);
    EXPECT_EQ(upward[1].listing, names);
    EXPECT_EQ(upward[1].origin, SetRank(17));
  }
}

}  // namespace
}  // namespace rdmacoll
