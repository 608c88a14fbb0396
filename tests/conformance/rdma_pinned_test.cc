// Memory of callers that devices reach where it lies.
#include "conformance/verbs_fleet.h"

namespace rdmacoll::conformance {
namespace {

using verbs_sim::ethernet;

constexpr std::size_t kBytes = 3'000'000;

class RdmaPinned : public testing::Test {
 protected:
  void make(verbs_sim::AdapterModel first = ethernet(0)) {
    const rdma::PeerOptions options{.chunk_bytes = 100'000, .peer_timeout = kNeverSilent};
    fleet_ = std::make_unique<VerbsFleet>(
        verbs_sim::FabricPolicy{.seed = 61},
        std::vector<VerbsRank>{{.adapters = {first, ethernet(0, 1)}, .options = options},
                               {.adapters = {ethernet(1), ethernet(1, 1)}, .options = options}});
    fleet_->meet_all();
    ASSERT_TRUE(fleet_->poll_until([&] { return fleet_->all_connected(); }));
  }
  Transport& at(int rank) { return fleet_->at(rank); }
  Piece whole(std::vector<std::byte>& memory) { return {memory.data(), memory.size()}; }
  uint64_t copied() { return at(0).counters().bytes_copied + at(1).counters().bytes_copied; }

  // Starts a transfer from rank 0 to rank 1. Both pieces have the same size.
  uint64_t start(Piece from, Piece to) {
    paint({from.data, from.bytes}, ++cookie_);
    paint({to.data, to.bytes}, 0);
    fleet_->offer([&] { return at(1).post_recv({0, 0, cookie_, {&to, 1}, cookie_}); });
    fleet_->offer([&] { return at(0).post_send({1, 0, cookie_, {&from, 1}, cookie_}); });
    return cookie_;
  }
  void finish(Piece to) {
    ASSERT_TRUE(fleet_->poll_until([&] {
      return fleet_->sink(1).received_cookies.contains(cookie_) &&
             fleet_->sink(0).sent_cookies.contains(cookie_);
    }));
    EXPECT_TRUE(is_painted({to.data, to.bytes}, cookie_));
    EXPECT_EQ(fleet_->fabric.counters().changed_under_way, 0u);
  }
  void transfer(Piece from, Piece to) {
    start(from, to);
    finish(to);
  }

  // Declared before the fleet, so that the fleet is destroyed first. Its devices may have
  // registered this memory.
  std::vector<std::byte> source_ = std::vector<std::byte>(kBytes);
  std::vector<std::byte> target_ = std::vector<std::byte>(kBytes);
  std::unique_ptr<VerbsFleet> fleet_;
  uint64_t cookie_ = 0;
};

TEST_F(RdmaPinned, memory_and_any_part_of_it_is_sent_and_written_without_a_copy) {
  make();
  ASSERT_TRUE(at(0).pin(whole(source_)) && at(1).pin(whole(target_)));
  EXPECT_TRUE(at(0).is_pinned({source_.data() + 1000, kBytes - 1000}));
  EXPECT_FALSE(at(0).is_pinned({source_.data() + 1000, kBytes}));
  EXPECT_FALSE(at(0).is_pinned(whole(target_))) << "which is another rank's";
  transfer(whole(source_), whole(target_));
  transfer({source_.data() + 777, 500'000}, {target_.data() + 1, 500'000});
  EXPECT_EQ(copied(), 0u);
}

TEST_F(RdmaPinned, pieces_of_the_pool_pinned_and_other_memory_share_a_transfer) {
  make();
  std::mt19937_64 random(62);
  std::byte* of_pool = fleet_->pool(0).allocate(200'000);
  std::vector<std::byte> other(200'000);
  ASSERT_TRUE(at(0).pin(whole(source_)) && at(1).pin(whole(target_)));
  const Piece pieces[] = {{source_.data(), 300'000}, {other.data(), 200'000}, {of_pool, 200'000}};
  const Piece to{target_.data(), 700'000};
  std::vector<std::byte> expected(700'000);
  paint(expected, 9);
  std::size_t at_byte = 0;
  for (const Piece& piece : pieces) {
    std::copy_n(expected.begin() + static_cast<std::ptrdiff_t>(at_byte), piece.bytes, piece.data);
    at_byte += piece.bytes;
  }
  cookie_ = 9;
  fleet_->offer([&] { return at(1).post_recv({0, 0, 9, {&to, 1}, 9}); });
  fleet_->offer([&] { return at(0).post_send({1, 0, 9, pieces, 9}); });
  finish(to);
  EXPECT_EQ(copied(), 200'000u);
  fleet_->pool(0).free(of_pool);
}

TEST_F(RdmaPinned, memory_is_pinned_until_its_last_unpin) {
  make();
  ASSERT_TRUE(at(0).pin(whole(source_)) && at(0).pin(whole(source_)));
  ASSERT_TRUE(at(1).pin(whole(target_)));
  at(0).unpin(whole(source_));
  transfer(whole(source_), whole(target_));
  EXPECT_EQ(copied(), 0u);
  const uint64_t forgotten = fleet_->fabric.counters().deregistrations;
  at(0).unpin(whole(source_));
  EXPECT_EQ(fleet_->fabric.counters().deregistrations, forgotten + 2) << "one of each rail";
  EXPECT_FALSE(at(0).is_pinned(whole(source_)));
  transfer(whole(source_), whole(target_));
  EXPECT_EQ(copied(), kBytes);
}

TEST_F(RdmaPinned, memory_that_overlaps_is_pinned_by_each_alone) {
  make();
  const Piece front{source_.data(), 2'000'000}, middle{source_.data() + 500'000, 100'000};
  ASSERT_TRUE(at(0).pin(front) && at(0).pin(middle) && at(1).pin(whole(target_)));
  transfer({source_.data() + 400'000, 1'000'000}, {target_.data(), 1'000'000});
  at(0).unpin(front);
  EXPECT_TRUE(at(0).is_pinned(middle));
  EXPECT_FALSE(at(0).is_pinned(front));
  transfer(middle, {target_.data(), middle.bytes});
  EXPECT_EQ(copied(), 0u);
}

TEST_F(RdmaPinned, transfers_under_way_at_the_unpin_end_as_they_began) {
  make();
  for (int turns = 0; turns < 60; ++turns) {
    ASSERT_TRUE(at(0).pin(whole(source_)) && at(1).pin(whole(target_)));
    const uint64_t forgotten = fleet_->fabric.counters().deregistrations;
    start(whole(source_), whole(target_));
    for (int turn = 0; turn < turns; ++turn) fleet_->poll_all();
    at(0).unpin(whole(source_));
    at(1).unpin(whole(target_));
    finish(whole(target_));
    fleet_->poll_all();
    EXPECT_EQ(fleet_->fabric.counters().deregistrations, forgotten + 4) << turns << " turns";
  }
}

TEST_F(RdmaPinned, memory_that_may_not_be_locked_is_copied) {
  verbs_sim::AdapterModel limited = ethernet(0);
  limited.lockable_bytes = std::size_t{32} << 20;
  make(limited);
  std::vector<std::byte> large(limited.lockable_bytes + 1);
  EXPECT_FALSE(at(0).pin(whole(large)));
  EXPECT_FALSE(at(0).is_pinned(whole(large)));
  ASSERT_TRUE(at(1).pin(whole(target_)));
  transfer({large.data(), kBytes}, whole(target_));
  EXPECT_EQ(copied(), kBytes);
}

}  // namespace
}  // namespace rdmacoll::conformance
