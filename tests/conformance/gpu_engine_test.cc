// Engines over every transport whose tensors are on GPUs, stepped by hand. A processor that
// accesses such memory ends the program. NICs have no access here: rdma_gpu_engine_test.cc is about
// theirs.
#include <array>
#include <functional>
#include <memory>
#include <vector>

#include "base/text.h"
#include "conformance/gpu_caller.h"
#include "conformance/harness.h"
#include "engine/engine.h"
#include "every_kind.h"
#include "sim/values.h"

namespace rdmacoll::conformance {
namespace {

constexpr int kRanks = 3;

class GpuEngines : public testing::TestWithParam<Backend> {
 protected:
  void SetUp() override {
    fleet_ = GetParam().make(kRanks, kNeverSilent);
    for (int rank = 0; rank < kRanks; ++rank) {
      gpus_[rank] = std::make_unique<verbs_sim::SimGpus>(std::vector<verbs_sim::GpuModel>(2));
      callers_[rank] = std::make_unique<GpuCaller>(*gpus_[rank]);
      computes_[rank] = std::make_unique<CopyingCompute>(*gpus_[rank]);
      engines_.push_back(std::make_unique<Engine>(EngineParts{world_of(kRanks, rank),
                                                              {},
                                                              *fleet_->transports[rank],
                                                              *computes_[rank],
                                                              *fleet_->pools[rank],
                                                              steady_clock(),
                                                              Log(LogLevel::error, rank)}));
    }
  }
  void TearDown() override {
    for (const auto& engine : engines_) engine->end();
    engines_.clear();
    for (auto& caller : callers_) caller.reset();
    fleet_.reset();
  }

  void drive(const OperationRef& operation) {
    const Nanoseconds limit = steady_clock().now() + 20 * kSecond;
    while (!operation->done() && steady_clock().now() < limit) {
      for (const auto& engine : engines_) {
        if (!operation->done()) engine->progress();
      }
      fleet_->step();
    }
    ASSERT_TRUE(operation->done()) << engines_[0]->state();
    ASSERT_TRUE(operation->status().ok()) << operation->status().message();
  }
  // Runs the operation on all ranks, on GPUs where `is_on_gpu` says so, and checks its results.
  void run(const SimOperation& operation, const std::function<bool(int)>& is_on_gpu) {
    std::vector<SimMemory> memory(kRanks);
    std::vector<OperationRef> operations;
    for (int rank = 0; rank < kRanks; ++rank) {
      Request request = sim_request(operation, rank, rank % 2 == 0, memory[rank]);
      if (is_on_gpu(rank)) callers_[rank]->take(static_cast<Gpu>(rank % 2), request);
      operations.push_back(std::make_shared<Operation>(std::move(request)));
      ASSERT_TRUE(engines_[rank]->submit(operations.back()).ok());
    }
    for (int rank = 0; rank < kRanks; ++rank) {
      ASSERT_NO_FATAL_FAILURE(drive(operations[rank]));
      if (is_on_gpu(rank)) callers_[rank]->fetch(*operations[rank]);
      EXPECT_EQ(sim_error(operation, kRanks, rank, *operations[rank]), "") << "rank " << rank;
    }
    for (const auto& caller : callers_) caller->free();
  }

  std::array<std::unique_ptr<verbs_sim::SimGpus>, kRanks> gpus_;
  std::array<std::unique_ptr<GpuCaller>, kRanks> callers_;
  std::array<std::unique_ptr<CopyingCompute>, kRanks> computes_;
  std::unique_ptr<Fleet> fleet_;
  std::vector<std::unique_ptr<Engine>> engines_;
};

// Parts that are empty, that travel eagerly, and that wait for their grants.
TEST_P(GpuEngines, every_kind_has_its_results) {
  for (const int64_t rows : {0, 3, 3000, 60'000}) {
    for (const SimOperation& operation : every_kind(kRanks, rows, rows == 3000)) {
      SCOPED_TRACE(cat(name_of(operation.kind), " of ", rows, " rows"));
      ASSERT_NO_FATAL_FAILURE(run(operation, [](int) { return true; }));
    }
  }
  for (const auto& compute : computes_) EXPECT_GT(compute->gpu_counters().bytes_staged, 1'000'000u);
}

TEST_P(GpuEngines, worlds_with_some_tensors_on_gpus_have_their_results) {
  for (const int alone : {0, 1, 2}) {
    for (const SimOperation& operation : every_kind(kRanks, 5'000, alone == 1)) {
      SCOPED_TRACE(cat(name_of(operation.kind), ", rank ", alone, " alone"));
      ASSERT_NO_FATAL_FAILURE(run(operation, [&](int rank) { return rank != alone; }));
      ASSERT_NO_FATAL_FAILURE(run(operation, [&](int rank) { return rank == alone; }));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(over, GpuEngines, testing::ValuesIn(backends()), test_name);

}  // namespace
}  // namespace rdmacoll::conformance
