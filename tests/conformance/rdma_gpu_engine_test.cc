// Engines over RDMA whose tensors are on GPUs, stepped by hand.
#include <numeric>

#include "conformance/gpu_engines.h"
#include "conformance/verbs_fleet.h"

namespace rdmacoll::conformance {
namespace {

using verbs_sim::ethernet;
using verbs_sim::GpuModel;

constexpr int kRanks = kGpuRanks;
constexpr GpuWays kBoth{.sends = true, .receives = true};

class RdmaGpuEngines : public testing::Test, protected GpuEngineRanks {
 protected:
  void make(const GpuModel& gpu = {}, uint64_t seed = 81) {
    end();
    make_gpus(gpu);
    const rdma::PeerOptions options{.chunk_bytes = 100'000, .peer_timeout = kNeverSilent};
    std::vector<VerbsRank> ranks;
    for (int rank = 0; rank < kRanks; ++rank) {
      ranks.push_back({.adapters = {ethernet(rank), ethernet(rank, 1)},
                       .options = options,
                       .gpus = gpus_[rank].get()});
    }
    fleet_ = std::make_unique<VerbsFleet>(verbs_sim::FabricPolicy{.seed = seed}, ranks);
    fleet_->meet_all();
    for (int rank = 0; rank < kRanks; ++rank) make_engine(fleet_->at(rank), fleet_->pool(rank));
  }
  ~RdmaGpuEngines() override { end(); }
  void end() {
    end_engines();
    if (fleet_ == nullptr) return;
    EXPECT_EQ(fleet_->fabric.counters().changed_under_way, 0u);
    for (const auto& gpus : gpus_) {
      EXPECT_EQ(gpus->counters().stale_accesses, 0u);
      EXPECT_EQ(gpus->counters().bar1_refusals, 0u);
      EXPECT_EQ(gpus->counters().unsynchronized, 0u);
    }
    fleet_.reset();
  }

  uint64_t metric(int rank, std::string_view name) const {
    const std::string metrics = engines_[rank]->metrics_json({});
    const std::string key = cat("\"", name, "\": ");
    const std::size_t at = metrics.find(key);
    EXPECT_NE(at, std::string::npos) << name;
    return at == std::string::npos ? 0 : std::stoull(metrics.substr(at + key.size()));
  }
  uint64_t sum(std::string_view name) const {
    uint64_t total = 0;
    for (int rank = 0; rank < kRanks; ++rank) total += metric(rank, name);
    return total;
  }
  void step_transports() override { fleet_->step(); }

  std::unique_ptr<VerbsFleet> fleet_;
};

// Eager and by rendezvous: parts that are empty, short, and longer than a chunk of the simulation.
TEST_F(RdmaGpuEngines, every_kind_has_its_results) {
  make();
  for (const int64_t rows : {0, 3, 3000, 60'000}) {
    for (const SimOperation& operation : every_kind(kRanks, rows, rows == 3000)) {
      SCOPED_TRACE(cat(name_of(operation.kind), " of ", rows, " rows"));
      ASSERT_NO_FATAL_FAILURE(run(operation, on_all));
    }
    if (rows > 3) continue;
    EXPECT_EQ(sum("bytes_direct_sent") + sum("bytes_direct_received"), 0u) << "too small";
  }
  EXPECT_GT(sum("bytes_direct_sent"), 1'000'000u);
  EXPECT_GT(sum("bytes_direct_received"), 1'000'000u);
  EXPECT_GT(fleet_->fabric.counters().reads, 0u) << "flushes by the NICs that wrote";
}

TEST_F(RdmaGpuEngines, worlds_with_some_tensors_on_gpus_have_their_results) {
  for (const int alone : {0, 1, 2}) {
    make({.write_flush = WriteFlush::call}, 82 + static_cast<uint64_t>(alone));
    ASSERT_NO_FATAL_FAILURE(run_mixed_worlds(20'000, alone));
    EXPECT_GT(sum("bytes_direct_sent"), 0u);
    EXPECT_GT(gpus_[1]->counters().flushes, 0u) << "by the call";
    EXPECT_EQ(fleet_->fabric.counters().reads, 0u);
  }
}

TEST_F(RdmaGpuEngines, bytes_take_the_ways_that_are_decided) {
  const SimOperation sum_of{.name = "sum", .shapes = {{100'000}, {100'000}}};
  const SimOperation gather{.kind = Kind::allgather,
                            .name = "gather",
                            .shapes = {{3, 1}},
                            .rows = {{20'000}, {25'000}, {30'000}}};
  for (const GpuWays& ways :
       {GpuWays{}, GpuWays{.sends = true}, GpuWays{.receives = true}, kBoth}) {
    make({.ways = ways});
    for (const SimOperation& operation : {sum_of, gather}) {
      SCOPED_TRACE(
          cat(operation.name, ways.sends ? " sends" : "", ways.receives ? " receives" : ""));
      ASSERT_NO_FATAL_FAILURE(run(operation, on_all));
    }
    EXPECT_EQ(sum("bytes_direct_sent") > 0, ways.sends);
    EXPECT_EQ(sum("bytes_direct_received") > 0, ways.receives);
    EXPECT_GT(sum("bytes_staged"), 0u) << "sums are made by processors";
    EXPECT_EQ(gpus_[0]->bar1_used(0) > 0, ways.any());
  }
}

// NICs read and write all parts on GPUs. The own part is copied there.
TEST_F(RdmaGpuEngines, an_allgather_stages_nothing) {
  make();
  const SimOperation gather{.kind = Kind::allgather,
                            .name = "gather",
                            .shapes = {{3, 1}},
                            .rows = {{50'000}, {50'000}, {50'000}}};
  ASSERT_NO_FATAL_FAILURE(run(gather, on_all));
  const uint64_t part = 50'000 * 3 * sizeof(float);
  EXPECT_EQ(sum("bytes_direct_received"), kRanks * (kRanks - 1) * part);
  EXPECT_EQ(sum("bytes_direct_sent"), kRanks * (kRanks - 1) * part);
  EXPECT_EQ(sum("bytes_staged"), 0u);
}

// The processor copies small transfers, and it cannot access memory of GPUs.
TEST_F(RdmaGpuEngines, a_small_part_among_large_ones_is_staged) {
  make();
  for (const int64_t rows : {1, 20'000}) {
    const SimOperation gather{.kind = Kind::allgather,
                              .name = "gather",
                              .shapes = {{3, 1}},
                              .rows = {{50'000}, {rows}, {50'000}}};
    ASSERT_NO_FATAL_FAILURE(run(gather, on_all));
    EXPECT_EQ(sum("bytes_direct_received") > 0, rows > 1) << rows << " rows of rank 1";
  }
}

// A bias beside a matrix, as gradients have them. Many biases alone cost NICs more than copies.
TEST_F(RdmaGpuEngines, a_small_tensor_does_not_stage_the_large_ones_beside_it) {
  make();
  SimOperation gradients{.name = "gradients", .shapes = {{300'000}, {10}, {300'000}}};
  ASSERT_NO_FATAL_FAILURE(run(gradients, on_all));
  EXPECT_GT(sum("bytes_direct_received"), 300'000u);
  const uint64_t before = sum("bytes_direct_sent") + sum("bytes_direct_received");
  gradients = {.name = "biases", .shapes = {}};
  for (int i = 0; i < 200; ++i) gradients.shapes.push_back({1000});
  ASSERT_NO_FATAL_FAILURE(run(gradients, on_all));
  EXPECT_EQ(sum("bytes_direct_sent") + sum("bytes_direct_received"), before);
}

TEST_F(RdmaGpuEngines, a_steady_step_registers_nothing_after_the_first) {
  constexpr std::size_t kTensors = 6, kElements = 30'000;
  make();
  std::array<std::vector<std::byte*>, kRanks> arrays;
  for (int rank = 0; rank < kRanks; ++rank) {
    for (std::size_t i = 0; i < kTensors; ++i) {
      arrays[rank].push_back(callers_[rank]->allocate(0, kElements * sizeof(float)));
    }
  }
  std::vector<float> values(kElements);
  uint64_t registrations = 0, finds = 0;
  for (int step = 0; step < 12; ++step) {
    std::vector<OperationRef> operations;
    for (int rank = 0; rank < kRanks; ++rank) {
      std::fill(values.begin(), values.end(), static_cast<float>(rank + step));
      Request request;
      request.kind = Kind::allreduce;
      request.name = "gradients";
      for (std::byte* array : arrays[rank]) {
        gpus_[rank]->write(array, std::as_bytes(std::span(values)));
        request.tensors.push_back({array, array, {kElements}, ""});
        request.tensors.back().gpu = 0;
      }
      operations.push_back(std::make_shared<Operation>(std::move(request)));
      ASSERT_TRUE(engines_[rank]->submit(operations.back()).ok());
    }
    for (const OperationRef& operation : operations) ASSERT_NO_FATAL_FAILURE(drive(operation));
    const float wanted = static_cast<float>(kRanks * (kRanks - 1) / 2 + kRanks * step);
    const std::vector<float> expected(kElements, wanted);
    for (int rank = 0; rank < kRanks; ++rank) {
      for (std::byte* array : arrays[rank]) {
        const auto bytes = gpus_[rank]->read(array, kElements * sizeof(float));
        ASSERT_EQ(std::memcmp(bytes.data(), expected.data(), bytes.size()), 0) << "step " << step;
      }
    }
    // Pages of the pool are registered when they are first used.
    if (step == 3) registrations = sum("registrations");
    if (step == 3) finds = gpus_[0]->counters().finds;
  }
  EXPECT_EQ(sum("registrations"), registrations);
  EXPECT_GT(gpus_[0]->counters().finds, finds + 8 * kTensors) << "each run looks anew";
  for (const auto& gpus : gpus_) EXPECT_EQ(gpus->counters().sync_memops, kTensors);
}

// A prepared operation runs again on memory that was freed and allocated since.
TEST_F(RdmaGpuEngines, a_prepared_operation_looks_at_its_memory_in_each_run) {
  constexpr std::size_t kElements = 200'000, kBytes = kElements * sizeof(float);
  make();
  std::vector<float> values(kElements);
  std::array<std::byte*, kRanks> arrays;
  std::vector<OperationRef> operations;
  for (int rank = 0; rank < kRanks; ++rank) {
    arrays[rank] = gpus_[rank]->allocate(0, kBytes);
    Request request;
    request.kind = Kind::broadcast;
    request.name = "weights";
    request.tensors = {{arrays[rank], arrays[rank], {kElements}, ""}};
    request.tensors.back().gpu = 0;
    operations.push_back(std::make_shared<Operation>(std::move(request)));
    operations.back()->is_prepared = true;
  }
  for (int run = 0; run < 12; ++run) {
    std::fill(values.begin(), values.end(), static_cast<float>(run));
    gpus_[0]->write(arrays[0], std::as_bytes(std::span(values)));
    for (int rank = 0; rank < kRanks; ++rank) {
      if (run > 0) operations[rank]->rearm();
      ASSERT_TRUE(engines_[rank]->submit(operations[rank]).ok());
    }
    for (const OperationRef& operation : operations) ASSERT_NO_FATAL_FAILURE(drive(operation));
    for (int rank = 0; rank < kRanks; ++rank) {
      const auto bytes = gpus_[rank]->read(arrays[rank], kBytes);
      ASSERT_EQ(std::memcmp(bytes.data(), values.data(), kBytes), 0) << "run " << run;
      if (run % 3 != rank) continue;
      gpus_[rank]->free(arrays[rank]);
      ASSERT_EQ(gpus_[rank]->allocate(0, kBytes), arrays[rank]);
    }
  }
  EXPECT_EQ(sum("bytes_direct_received"), 12 * (kRanks - 1) * kBytes);
  for (int rank = 0; rank < kRanks; ++rank) gpus_[rank]->free(arrays[rank]);
}

TEST_F(RdmaGpuEngines, registrations_stay_within_a_small_bar1) {
  constexpr uint64_t kBar1 = 4 << 20;
  make({.bar1_bytes = kBar1});
  const std::vector<int64_t> sizes = {100'000, 600'000, 200'000};
  for (int step = 0; step < 2; ++step) {
    for (const int64_t size : sizes) {
      SCOPED_TRACE(cat(size, " elements"));
      const uint64_t direct = sum("bytes_direct_received");
      const SimOperation spread{.kind = Kind::broadcast, .name = "values", .shapes = {{size}}};
      ASSERT_NO_FATAL_FAILURE(run(spread, on_all));
      const bool fits = 2 * static_cast<uint64_t>(size) * sizeof(float) < kBar1;
      EXPECT_EQ(sum("bytes_direct_received") > direct, fits) << "two NICs register each array";
      for (const auto& gpus : gpus_) EXPECT_LE(gpus->bar1_used(0), kBar1);
    }
  }
}

}  // namespace
}  // namespace rdmacoll::conformance
