// The gate, message by message: it lets pass what a peer may say, and refuses each wrong field.
#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "agreement/gate.h"
#include "algorithm_names.h"
#include "set_worlds.h"

namespace rdmacoll {
namespace {

std::string described(Kind kind, const std::string& name, std::vector<int64_t> dims, int root = 0) {
  Request request;
  request.kind = kind;
  request.name = name;
  request.root = SetRank(root);
  request.tensors = {{nullptr, nullptr, std::move(dims), ""}};
  return encode_descriptor(request);
}

// Rank 1 of 40: its parent is rank 0, its children are ranks 17 to 32.
class GateOfRankOne : public testing::Test {
 protected:
  GateOfRankOne() {
    for (const std::string& bytes :
         {described(Kind::allreduce, "sum", {4}), described(Kind::allreduce, "other", {4}),
          described(Kind::allgather, "rows", {4, 2})}) {
      bool is_new = false;
      table_.intern(bytes, is_new);
    }
    log_.go_on();
  }

  // Expects that the gate accepts `message`, and refuses it after `change`.
  template <typename Body>
  void refuses(int sender, const Body& message, const std::function<void(Body&)>& change) {
    EXPECT_EQ(gate_.complaint(SetRank(sender), message), "");
    Body wrong = message;
    change(wrong);
    EXPECT_NE(gate_.complaint(SetRank(sender), wrong), "");
    EXPECT_NE(gate_.complaint(SetRank(2), message), "") << "rank 2 is neither parent nor child";
  }
  Decision decision(uint32_t id) const { return {0, {named::ring, 4096}, {{{id, ""}, 0}}}; }

  const SetWorld world_ = set_world(1, 40);
  DescriptorTable table_;
  Readiness readiness_{world_, table_, {}};
  DecisionLog log_{world_, table_, {}};
  Plan plan_{world_, table_};
  CatchUp catch_up_;
  Gate gate_{{world_, 0, table_, readiness_, log_, plan_, catch_up_}};
};

TEST_F(GateOfRankOne, refuses_readiness_that_its_sender_cannot_have) {
  const ReadyMessage message{{{{1, ""}, 0, SetRank(17), true, {}}}, 0};
  const auto is_refused = [&](const std::function<void(ReadyRecord&)>& change) {
    refuses<ReadyMessage>(17, message, [&](ReadyMessage& one) { change(one.records.front()); });
  };
  is_refused([](ReadyRecord& one) { one.origin = SetRank(18); });
  is_refused([](ReadyRecord& one) { one.descriptor.id = 4; });
  is_refused([](ReadyRecord& one) { one.descriptor = {0, "bytes"}; });
  is_refused([](ReadyRecord& one) { one.rows = {{SetRank(17), {1}}}; });
  is_refused([](ReadyRecord& one) { one.age = INT64_MAX; });
  is_refused([](ReadyRecord& one) {
    one.descriptor = {0, described(Kind::broadcast, "b", {2}, -5)};
  });
  refuses<ReadyMessage>(17, message, [](ReadyMessage& one) { one.era = 1; });
}

TEST_F(GateOfRankOne, refuses_times_of_decisions_and_ranks_that_are_not_there) {
  ASSERT_TRUE(log_.accept({0}));
  const auto below = static_cast<uint32_t>(tree_subtree(SetRank(17), world_.size()).size());
  const ReadyMessage message{{{{1, ""}, 0, SetRank(17), true, {}}}, 0, {{0, 100, below}}};
  refuses<ReadyMessage>(17, message, [](ReadyMessage& one) { one.times[0].sequence = 1; });
  refuses<ReadyMessage>(17, message, [](ReadyMessage& one) { ++one.times[0].ranks; });
}

TEST_F(GateOfRankOne, refuses_rows_that_do_not_fit) {
  const ReadyMessage message{{{{3, ""}, 0, SetRank(17), true, {{SetRank(17), {5}}}}}, 0};
  const auto is_refused = [&](std::vector<std::pair<SetRank, std::vector<int64_t>>> rows) {
    refuses<ReadyMessage>(17, message, [&](ReadyMessage& one) { one.records.front().rows = rows; });
  };
  is_refused({});
  is_refused({{SetRank(17), {5, 5}}});
  is_refused({{SetRank(18), {5}}});
  is_refused({{SetRank(17), {5}}, {SetRank(17), {5}}});
  is_refused({{SetRank(17), {int64_t{1} << 60}}});
}

TEST_F(GateOfRankOne, refuses_descriptions_of_what_cannot_run) {
  const InternMessage message{4, described(Kind::broadcast, "value", {3, 2}, 7)};
  const auto is_refused = [&](const std::string& bytes) {
    refuses<InternMessage>(0, message, [&](InternMessage& one) { one.bytes = bytes; });
  };
  is_refused("bytes");
  is_refused(described(Kind::broadcast, "value", {3, 2}, 40));
  is_refused(described(Kind::broadcast, "value", {3, 2}, 1 << 28));
  is_refused(described(Kind::broadcast, "value", {3, 2}, -5));
  is_refused(described(Kind::allreduce, "value", {3, -2}));
  is_refused(described(Kind::allreduce, "value", {int64_t{1} << 40, int64_t{1} << 40}));
  is_refused(described(Kind::reducescatter, "value", {}));
  is_refused(described(Kind::allreduce, "sum", {4}));  // this descriptor has a number already
  Request none;
  none.kind = Kind::alltoall;
  is_refused(encode_descriptor(none));
  refuses<InternMessage>(0, message, [](InternMessage& one) { one.id = 6; });
}

TEST_F(GateOfRankOne, refuses_decisions_that_cannot_be_run) {
  const auto is_refused = [&](const std::function<void(Decision&)>& change) {
    refuses<Decision>(0, decision(1), change);
  };
  is_refused([](Decision& one) { one.sequence = 1; });
  is_refused([](Decision& one) { one.units.push_back(one.units.front()); });
  is_refused([](Decision& one) { one.units.push_back({{3, ""}, 0}); });
  is_refused([](Decision& one) { one.movement.algorithm = Algorithm::none; });
  is_refused([](Decision& one) { one.movement.algorithm = named::ring_allgather; });
  is_refused([](Decision& one) { one.movement.segment_bytes = UINT64_MAX; });
  is_refused([](Decision& one) { one.most_rows = 1; });
  is_refused([](Decision& one) { one.rows.resize(40); });
  Decision both = decision(1);
  both.units.push_back({{2, ""}, 0});
  EXPECT_EQ(gate_.complaint(kTreeRoot, both), "");
  Decision rows = decision(3);
  rows.movement.algorithm = named::ring_allgather;
  rows.rows.assign(40, {2});
  refuses<Decision>(0, rows, [](Decision& one) { one.rows[5] = {2, 2}; });
  refuses<Decision>(0, rows, [](Decision& one) { one.rows[5] = {int64_t{1} << 60}; });
}

TEST_F(GateOfRankOne, refuses_a_plan_and_its_end_at_another_place) {
  const PlanMessage message{1, 0, -1, {{{named::ring, 4096}, {{1, false, 0}}}}};
  const auto is_refused = [&](const std::function<void(PlanMessage&)>& change) {
    refuses<PlanMessage>(0, message, change);
  };
  is_refused([](PlanMessage& one) { one.era = 2; });
  is_refused([](PlanMessage& one) { one.start = 1; });
  is_refused([](PlanMessage& one) { one.first_number = INT64_MAX; });
  is_refused([](PlanMessage& one) { one.decisions[0].units[0].descriptor = 9; });
  is_refused([](PlanMessage& one) { one.decisions[0].units[0].numbered = true; });
  ASSERT_TRUE(plan_.begin(message));
  plan_.freeze();
  EXPECT_FALSE(plan_.report(0, 0, 0));
  refuses<ResumeMessage>(0, {2, 0, 1},
                         [](ResumeMessage& one) { one.furthest = uint64_t{1} << 60; });
  refuses<ResumeMessage>(0, {2, 0, 1}, [](ResumeMessage& one) { one.furthest = 2; });
  EXPECT_NE(gate_.complaint(SetRank(17), FrozenMessage{1, 0, uint64_t{1} << 60}), "");
  EXPECT_EQ(gate_.complaint(SetRank(17), FrozenMessage{1, 0, 1}), "");
  EXPECT_NE(gate_.complaint(SetRank(17), FrozenMessage{1, 0, 1}), "") << "a second report";
  EXPECT_NE(gate_.complaint(kTreeRoot, CaughtUpMessage{0}), "") << "nothing waits for it";
  EXPECT_NE(gate_.complaint(kTreeRoot, ReplayMessage{0}), "");
  EXPECT_NE(gate_.complaint(kTreeRoot, AllJoinedMessage{SetRank(3), 0}), "")
      << "this rank has not joined";
  EXPECT_NE(gate_.complaint(kTreeRoot, ResultAddressMessage{0, 100}), "") << "no page begins there";
  EXPECT_EQ(gate_.complaint(kTreeRoot, ResultAddressMessage{0, 4096}), "");
}

}  // namespace
}  // namespace rdmacoll
