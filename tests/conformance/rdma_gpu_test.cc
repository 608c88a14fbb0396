// Memory of GPUs that NICs read and write where it lies.
#include <sys/mman.h>

#include "conformance/verbs_fleet.h"

namespace rdmacoll::conformance {
namespace {

using verbs_sim::ethernet;
using verbs_sim::GpuModel;
using verbs_sim::SimGpus;

constexpr std::size_t kBytes = 3'000'000;
constexpr Gpu kGpu = 0;

class RdmaGpu : public testing::Test {
 protected:
  void make(GpuModel gpu = {}, uint64_t seed = 71) {
    fleet_.reset();
    const rdma::PeerOptions options{.chunk_bytes = 100'000, .peer_timeout = kNeverSilent};
    std::vector<VerbsRank> ranks;
    for (int rank = 0; rank < 2; ++rank) {
      gpus_[rank] = std::make_unique<SimGpus>(std::vector<GpuModel>{gpu, gpu});
      ranks.push_back({.adapters = {ethernet(rank), ethernet(rank, 1)},
                       .options = options,
                       .gpus = gpus_[rank].get()});
    }
    fleet_ = std::make_unique<VerbsFleet>(verbs_sim::FabricPolicy{.seed = seed}, ranks);
    fleet_->meet_all();
    ASSERT_TRUE(fleet_->poll_until([&] { return fleet_->all_connected(); }));
    for (int rank = 0; rank < 2; ++rank) {
      arrays_[rank] = {gpus_[rank]->allocate(kGpu, kBytes), kBytes, kGpu};
    }
  }
  void TearDown() override {
    for (const auto& gpus : gpus_) {
      if (gpus == nullptr) continue;
      EXPECT_EQ(gpus->counters().stale_accesses, 0u);
      EXPECT_EQ(gpus->counters().bar1_refusals, 0u);
    }
  }

  Transport& at(int rank) { return fleet_->at(rank); }
  // A part of the array of a rank.
  Piece part(int rank, std::size_t from, std::size_t bytes) const {
    return {arrays_[rank].data + from, bytes, kGpu};
  }
  void write(int rank, const Piece& to, uint64_t seed) {
    std::vector<std::byte> bytes(to.bytes);
    paint(bytes, seed);
    gpus_[rank]->write(to.data, bytes);
  }
  // Whether kernels of the rank see these bytes.
  bool sees(int rank, const Piece& memory, uint64_t seed) const {
    return is_painted(gpus_[rank]->read(memory.data, memory.bytes), seed);
  }
  // Starts a transfer between pinned memory of GPUs. Expects that kernels see it at its report.
  uint64_t start(int from, const Piece& source, const Piece& target) {
    const int to = 1 - from;
    const uint64_t cookie = ++cookie_;
    write(from, source, cookie);
    fleet_->sink(to).on_received = [this, to, target](uint64_t received) {
      const bool is_seen = received != cookie_ || sees(to, target, received);
      EXPECT_TRUE(is_seen) << "transfer " << received;
    };
    fleet_->offer([&] { return at(to).post_recv({from, 0, cookie, {&target, 1}, cookie}); });
    fleet_->offer([&] { return at(from).post_send({to, 0, cookie, {&source, 1}, cookie}); });
    return cookie;
  }
  void finish(int from, uint64_t cookie) {
    ASSERT_TRUE(fleet_->poll_until([&] {
      return fleet_->sink(1 - from).received_cookies.contains(cookie) &&
             fleet_->sink(from).sent_cookies.contains(cookie);
    }));
  }
  // Pins as the engine does, for one operation.
  void transfer(int from, const Piece& source, const Piece& target) {
    ASSERT_TRUE(at(from).pin(source) && at(1 - from).pin(target));
    finish(from, start(from, source, target));
    at(from).unpin(source);
    at(1 - from).unpin(target);
  }
  uint64_t copied() { return at(0).counters().bytes_copied + at(1).counters().bytes_copied; }

  // Declared before the fleet, so that the fleet is destroyed first.
  std::unique_ptr<SimGpus> gpus_[2];
  std::unique_ptr<VerbsFleet> fleet_;
  Piece arrays_[2];
  uint64_t cookie_ = 0;
};

TEST_F(RdmaGpu, memory_of_gpus_is_sent_and_written_without_a_copy) {
  make();
  transfer(0, arrays_[0], arrays_[1]);
  transfer(1, part(1, 777, 500'000), part(0, 1, 500'000));
  EXPECT_EQ(copied(), 0u);
  EXPECT_TRUE(at(0).gpu_ways(kGpu).sends && at(0).gpu_ways(kGpu).receives);
  EXPECT_EQ(fleet_->fabric.counters().changed_under_way, 0u);
}

TEST_F(RdmaGpu, a_receive_is_reported_when_kernels_see_all_of_it) {
  for (const WriteFlush way : {WriteFlush::read, WriteFlush::call, WriteFlush::none}) {
    for (uint64_t seed = 1; seed <= 10; ++seed) {
      SCOPED_TRACE(cat("way ", static_cast<int>(way), ", seed ", seed));
      make({.write_flush = way}, seed);
      for (int i = 0; i < 3; ++i) transfer(0, part(0, 0, 400'000), part(1, 99, 400'000));
      const uint64_t reads = fleet_->fabric.counters().reads;
      EXPECT_EQ(reads, way == WriteFlush::read ? 6u : 0u) << "one by each NIC that wrote";
      EXPECT_EQ(gpus_[1]->counters().flushes > 0, way == WriteFlush::call);
    }
  }
}

TEST_F(RdmaGpu, many_transfers_share_the_flushes_of_a_nic) {
  make();
  ASSERT_TRUE(at(0).pin(arrays_[0]) && at(1).pin(arrays_[1]));
  std::vector<std::byte> all(kBytes);
  paint(all, 5);
  gpus_[0]->write(arrays_[0].data, all);
  std::vector<Piece> pieces;
  for (std::size_t i = 0; i < 30; ++i) pieces.push_back(part(0, i * 100'000, 100'000));
  std::size_t seen = 0;
  fleet_->sink(1).on_received = [&](uint64_t cookie) {
    const std::size_t from = cookie * 100'000;
    const auto bytes = gpus_[1]->read(arrays_[1].data + from, 100'000);
    seen += std::equal(bytes.begin(), bytes.end(), all.begin() + static_cast<std::ptrdiff_t>(from));
  };
  for (uint64_t i = 0; i < 30; ++i) {
    const Piece target = part(1, i * 100'000, 100'000);
    fleet_->offer([&] { return at(1).post_recv({0, 0, i, {&target, 1}, i}); });
    fleet_->offer([&] { return at(0).post_send({1, 0, i, {&pieces[i], 1}, i}); });
  }
  ASSERT_TRUE(fleet_->poll_until([&] { return fleet_->sink(1).received_cookies.size() == 30; }));
  EXPECT_EQ(seen, 30u);
  const uint64_t reads = fleet_->fabric.counters().reads;
  EXPECT_GE(reads, 2u) << "each NIC has written";
  EXPECT_LE(reads, 30u) << "each NIC has fewer flushes than transfers";
}

// The host may get an address that memory of a GPU had. A registration of that memory is not used.
TEST_F(RdmaGpu, memory_of_the_host_at_an_address_that_a_gpu_had_is_sent) {
  make();
  transfer(0, arrays_[0], arrays_[1]);
  gpus_[0]->free(arrays_[0].data);
  const Piece host{arrays_[0].data, kBytes};
  void* const mapped = ::mmap(host.data, host.bytes, PROT_READ | PROT_WRITE,
                              MAP_FIXED | MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_EQ(mapped, host.data);
  paint({host.data, host.bytes}, 77);
  ASSERT_TRUE(at(1).pin(arrays_[1]));
  fleet_->sink(1).on_received = [](uint64_t) {};
  for (const bool is_pinned : {false, true}) {
    if (is_pinned) {
      ASSERT_TRUE(at(0).pin(host));
    }
    const uint64_t cookie = ++cookie_;
    fleet_->offer([&] { return at(1).post_recv({0, 0, cookie, {&arrays_[1], 1}, cookie}); });
    fleet_->offer([&] { return at(0).post_send({1, 0, cookie, {&host, 1}, cookie}); });
    finish(0, cookie);
    EXPECT_TRUE(sees(1, arrays_[1], 77));
  }
  at(0).unpin(host);
  at(1).unpin(arrays_[1]);
}

TEST_F(RdmaGpu, pieces_of_two_gpus_and_of_the_host_share_a_transfer) {
  make();
  const Piece other{gpus_[1]->allocate(1, 300'000), 300'000, 1};
  std::byte* of_pool = fleet_->pool(1).allocate(200'000);
  const Piece to[] = {part(1, 0, 300'000), {of_pool, 200'000}, other};
  const Piece from = part(0, 0, 800'000);
  ASSERT_TRUE(at(0).pin(from) && at(1).pin(to[0]) && at(1).pin(other));
  std::vector<std::byte> sent(from.bytes);
  paint(sent, 4);
  gpus_[0]->write(from.data, sent);
  fleet_->offer([&] { return at(1).post_recv({0, 0, 1, to, 1}); });
  fleet_->offer([&] { return at(0).post_send({1, 0, 1, {&from, 1}, 1}); });
  finish(0, 1);
  std::vector<std::byte> came = gpus_[1]->read(to[0].data, 300'000);
  came.insert(came.end(), of_pool, of_pool + 200'000);
  const std::vector<std::byte> rest = gpus_[1]->read(other.data, 300'000);
  came.insert(came.end(), rest.begin(), rest.end());
  EXPECT_EQ(came, sent);
  EXPECT_EQ(copied(), 0u);
  fleet_->pool(1).free(of_pool);
}

TEST_F(RdmaGpu, arrays_that_are_freed_and_allocated_between_operations_arrive) {
  make({.bar1_bytes = 64 * 65536});
  for (int i = 0; i < 40; ++i) {
    transfer(i % 2, part(i % 2, 0, 600'000), part(1 - i % 2, 5000, 600'000));
    for (int rank = 0; rank < 2; ++rank) {
      if (i % 3 == 0) {
        gpus_[rank]->free(arrays_[rank].data);
        arrays_[rank].data = gpus_[rank]->allocate(kGpu, kBytes);
      } else if (i % 3 == 1) {
        gpus_[rank]->remap(arrays_[rank].data);
      }
    }
  }
  EXPECT_EQ(copied(), 0u);
}

TEST_F(RdmaGpu, a_large_array_goes_through_a_small_bar1_in_slabs) {
  make({.bar1_bytes = 64 * 65536});
  const Piece large[] = {{gpus_[0]->allocate(kGpu, 40 << 20), 40 << 20, kGpu},
                         {gpus_[1]->allocate(kGpu, 40 << 20), 40 << 20, kGpu}};
  EXPECT_FALSE(at(0).pin(large[0]));
  for (std::size_t from = 0; from < large[0].bytes; from += 1'100'000) {
    const std::size_t bytes = std::min<std::size_t>(1'000'000, large[0].bytes - from);
    transfer(0, {large[0].data + from, bytes, kGpu}, {large[1].data + from, bytes, kGpu});
  }
}

TEST_F(RdmaGpu, transfers_under_way_at_the_unpin_end_as_they_began) {
  make({.bar1_bytes = 96 * 65536});
  for (int turns = 0; turns < 40; ++turns) {
    ASSERT_TRUE(at(0).pin(arrays_[0]) && at(1).pin(arrays_[1]));
    const uint64_t cookie = start(0, arrays_[0], arrays_[1]);
    for (int turn = 0; turn < turns; ++turn) fleet_->poll_all();
    at(0).unpin(arrays_[0]);
    at(1).unpin(arrays_[1]);
    // Others want their BAR1 meanwhile.
    for (int rank = 0; rank < 2; ++rank) {
      const Piece other{gpus_[rank]->allocate(kGpu, kBytes), kBytes, kGpu};
      if (at(rank).pin(other)) at(rank).unpin(other);
      gpus_[rank]->free(other.data);
    }
    finish(0, cookie);
  }
}

TEST_F(RdmaGpu, data_of_a_peer_that_leaves_is_flushed_and_reported_before_its_end) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    make({}, seed);
    ASSERT_TRUE(at(0).pin(arrays_[0]) && at(1).pin(arrays_[1]));
    const uint64_t cookie = start(0, arrays_[0], arrays_[1]);
    ASSERT_TRUE(fleet_->poll_until([&] { return fleet_->sink(0).sent_cookies.contains(cookie); }));
    at(0).unpin(arrays_[0]);
    fleet_->transports[0].reset();
    ASSERT_TRUE(fleet_->poll_until([&] { return !fleet_->sink(1).failures[0].empty(); }));
    EXPECT_TRUE(fleet_->sink(1).received_cookies.contains(cookie)) << "seed " << seed;
  }
}

TEST_F(RdmaGpu, memory_of_transfers_with_a_failed_peer_is_free_again) {
  make();
  ASSERT_TRUE(at(0).pin(arrays_[0]) && at(1).pin(arrays_[1]));
  start(0, arrays_[0], arrays_[1]);
  for (int turn = 0; turn < 8; ++turn) fleet_->poll_all();
  fleet_->transports[0].reset();
  ASSERT_TRUE(fleet_->poll_until([&] { return !fleet_->sink(1).failures[0].empty(); }));
  at(1).unpin(arrays_[1]);
  gpus_[1]->free(arrays_[1].data);
  const Piece other{gpus_[1]->allocate(kGpu, kBytes), kBytes, kGpu};
  EXPECT_EQ(other.data, arrays_[1].data);
  EXPECT_TRUE(at(1).pin(other)) << "no transfer holds the old memory";
  at(1).unpin(other);
}

TEST_F(RdmaGpu, a_flush_that_fails_ends_the_peer_with_its_cause) {
  make();
  fleet_->fabric.policy().refuses_reads = true;
  ASSERT_TRUE(at(0).pin(arrays_[0]) && at(1).pin(arrays_[1]));
  start(0, arrays_[0], arrays_[1]);
  EXPECT_NE(fleet_->failure(1, 0).find("a flush of GPU memory failed"), std::string::npos);
  EXPECT_TRUE(fleet_->sink(1).received_cookies.empty());
}

TEST_F(RdmaGpu, memory_of_a_gpu_is_not_pinned_where_nics_cannot_access_it) {
  make();
  const Piece plain{gpus_[0]->allocate(kGpu, kBytes, false), kBytes, kGpu};
  EXPECT_FALSE(at(0).pin(plain));
  EXPECT_FALSE(at(0).is_pinned(plain));
  const Piece host{nullptr, 100};
  EXPECT_FALSE(at(0).is_pinned(host));
}

using RdmaGpuDeathTest = RdmaGpu;

TEST_F(RdmaGpuDeathTest, transfers_that_the_processor_copies_have_no_gpu_memory) {
  make();
  ASSERT_TRUE(at(0).pin(arrays_[0]));
  const Piece small = part(0, 0, 100), large = part(1, 0, 500'000);
  EXPECT_DEATH((void)at(0).post_send({1, 0, 1, {&small, 1}, 1}), "small transfer of GPU memory");
  EXPECT_DEATH((void)at(1).post_recv({0, 0, 1, {&large, 1}, 1}), "that are not held");
}

}  // namespace
}  // namespace rdmacoll::conformance
