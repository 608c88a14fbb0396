// Engines over every transport whose tensors are on GPUs, stepped by hand. A processor that
// accesses such memory ends the program. NICs have no access here: rdma_gpu_engine_test.cc is about
// theirs.
#include "conformance/gpu_engines.h"

namespace rdmacoll::conformance {
namespace {

class GpuEngines : public testing::TestWithParam<Backend>, protected GpuEngineRanks {
 protected:
  void SetUp() override {
    make_gpus();
    fleet_ = GetParam().make(kGpuRanks, kNeverSilent);
    for (int rank = 0; rank < kGpuRanks; ++rank) {
      make_engine(*fleet_->transports[rank], *fleet_->pools[rank]);
    }
  }
  void TearDown() override {
    end_engines();
    fleet_.reset();
  }
  void step_transports() override { fleet_->step(); }

  std::unique_ptr<Fleet> fleet_;
};

// Parts that are empty, that travel eagerly, and that wait for their grants.
TEST_P(GpuEngines, every_kind_has_its_results) {
  for (const int64_t rows : {0, 3, 3000, 60'000}) {
    for (const SimOperation& operation : every_kind(kGpuRanks, rows, rows == 3000)) {
      SCOPED_TRACE(cat(name_of(operation.kind), " of ", rows, " rows"));
      ASSERT_NO_FATAL_FAILURE(run(operation, on_all));
    }
  }
  for (const auto& compute : computes_) EXPECT_GT(compute->gpu_counters().bytes_staged, 1'000'000u);
}

TEST_P(GpuEngines, worlds_with_some_tensors_on_gpus_have_their_results) {
  for (const int alone : {0, 1, 2}) {
    ASSERT_NO_FATAL_FAILURE(run_mixed_worlds(5'000, alone));
  }
}

INSTANTIATE_TEST_SUITE_P(over, GpuEngines, testing::ValuesIn(backends()), test_name);

}  // namespace
}  // namespace rdmacoll::conformance
