// Engines of three ranks whose tensors are on GPUs, stepped by hand, over a transport of a test.
// A processor that accesses such memory ends the program.
#pragma once

#include <gtest/gtest.h>

#include <array>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "base/text.h"
#include "conformance/gpu_caller.h"
#include "conformance/harness.h"
#include "engine/engine.h"
#include "every_kind.h"
#include "sim/values.h"

namespace rdmacoll::conformance {

constexpr int kGpuRanks = 3;

// A fixture's part without its transports. The fixture makes the GPUs, then its transports, then
// the engines. It ends the engines before it destroys the transports.
class GpuEngineRanks {
 public:
  virtual ~GpuEngineRanks() { EXPECT_TRUE(engines_.empty()) << "end_engines() was not called"; }

 protected:
  // Each rank has two GPUs of `model`.
  void make_gpus(const verbs_sim::GpuModel& model = {}) {
    for (int rank = 0; rank < kGpuRanks; ++rank) {
      gpus_[rank] =
          std::make_unique<verbs_sim::SimGpus>(std::vector<verbs_sim::GpuModel>{model, model});
      callers_[rank] = std::make_unique<GpuCaller>(*gpus_[rank]);
      computes_[rank] = std::make_unique<CopyingCompute>(*gpus_[rank]);
    }
  }
  // Makes the engine of the next rank.
  void make_engine(Transport& transport, MemoryPool& pool) {
    const int rank = static_cast<int>(engines_.size());
    engines_.push_back(std::make_unique<Engine>(EngineParts{world_of(kGpuRanks, rank),
                                                            {},
                                                            transport,
                                                            *computes_[rank],
                                                            pool,
                                                            steady_clock(),
                                                            Log(LogLevel::error, rank)}));
  }
  void end_engines() {
    for (const auto& engine : engines_) engine->end();
    engines_.clear();
    for (auto& caller : callers_) caller.reset();
  }
  virtual void step_transports() = 0;

  void drive(const OperationRef& operation) {
    const Nanoseconds limit = steady_clock().now() + 20 * kSecond;
    while (!operation->done() && steady_clock().now() < limit) {
      for (const auto& engine : engines_) {
        if (!operation->done()) engine->progress();
      }
      step_transports();
    }
    ASSERT_TRUE(operation->done()) << engines_[0]->state();
    ASSERT_TRUE(operation->status().ok()) << operation->status().message();
  }
  // Runs the operation on all ranks, on GPUs where `is_on_gpu` says so, and checks its results.
  void run(const SimOperation& operation, const std::function<bool(int)>& is_on_gpu) {
    std::vector<SimMemory> memory(kGpuRanks);
    std::vector<OperationRef> operations;
    for (int rank = 0; rank < kGpuRanks; ++rank) {
      Request request = sim_request(operation, rank, rank % 2 == 0, memory[rank]);
      if (is_on_gpu(rank)) callers_[rank]->take(static_cast<Gpu>(rank % 2), request);
      operations.push_back(std::make_shared<Operation>(std::move(request)));
      ASSERT_TRUE(engines_[rank]->submit(operations.back()).ok());
    }
    for (int rank = 0; rank < kGpuRanks; ++rank) {
      ASSERT_NO_FATAL_FAILURE(drive(operations[rank]));
      if (is_on_gpu(rank)) callers_[rank]->fetch(*operations[rank]);
      EXPECT_EQ(sim_error(operation, kGpuRanks, rank, *operations[rank]), "") << "rank " << rank;
    }
    for (const auto& caller : callers_) caller->free();
  }
  // Runs every kind twice: with all ranks but `alone` on GPUs, and with this rank only.
  void run_mixed_worlds(int64_t rows, int alone) {
    for (const SimOperation& operation : every_kind(kGpuRanks, rows, alone == 1)) {
      SCOPED_TRACE(cat(name_of(operation.kind), ", rank ", alone, " alone"));
      ASSERT_NO_FATAL_FAILURE(run(operation, [&](int rank) { return rank != alone; }));
      ASSERT_NO_FATAL_FAILURE(run(operation, [&](int rank) { return rank == alone; }));
    }
  }
  static bool on_all(int) { return true; }

  std::array<std::unique_ptr<verbs_sim::SimGpus>, kGpuRanks> gpus_;
  std::array<std::unique_ptr<GpuCaller>, kGpuRanks> callers_;
  std::array<std::unique_ptr<CopyingCompute>, kGpuRanks> computes_;
  std::vector<std::unique_ptr<Engine>> engines_;
};

}  // namespace rdmacoll::conformance
