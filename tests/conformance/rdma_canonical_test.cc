// The canonical order over simulated RDMA: all algorithms give the bits of one tree.
#include "compute/inline.h"
#include "conformance/verbs_fleet.h"
#include "engine/engine.h"
#include "unit/reduce_oracle.h"

namespace rdmacoll::conformance {
namespace {

constexpr std::size_t kCount = 3001;
constexpr Dtype kFloats[] = {Dtype::float32, Dtype::float16, Dtype::bfloat16};

std::vector<VerbsRank> ranks_with_devices(int ranks) {
  std::vector<VerbsRank> all;
  for (int rank = 0; rank < ranks; ++rank) {
    all.push_back({.adapters = {verbs_sim::ethernet(rank)}, .pool_bytes = std::size_t{16} << 20});
  }
  return all;
}

// Engines on nodes of two ranks. All ranks connect through their devices, even within a node.
class CanonicalEngines {
 public:
  CanonicalEngines(int ranks, const std::string& algorithm)
      : fleet_({.seed = 17}, ranks_with_devices(ranks)), computes_(ranks) {
    fleet_.meet_all();
    Config config;
    config.canonical = true;
    if (!algorithm.empty()) config.allreduce_algorithms = {{algorithm}};
    for (int rank = 0; rank < ranks; ++rank) {
      World world = world_of(ranks, rank);
      for (int r = 0; r < ranks; ++r) world.members[r].node = r / 2;
      engines_.push_back(std::make_unique<Engine>(
          EngineParts{world, config, fleet_.at(rank), computes_[rank], fleet_.pool(rank),
                      steady_clock(), Log(LogLevel::error, rank)}));
    }
  }
  ~CanonicalEngines() {
    for (const auto& engine : engines_) engine->end();
  }

  void sum(Dtype dtype, std::vector<oracle::Bytes>& values) {
    std::vector<OperationRef> operations;
    for (std::size_t rank = 0; rank < engines_.size(); ++rank) {
      Request request;
      request.dtype = dtype;
      request.tensors = {{values[rank].data(), values[rank].data(), {kCount}, ""}};
      operations.push_back(std::make_shared<Operation>(std::move(request)));
      ASSERT_TRUE(engines_[rank]->submit(operations.back()).ok());
    }
    const Nanoseconds limit = steady_clock().now() + 60 * kSecond;
    for (const OperationRef& operation : operations) {
      while (!operation->done() && steady_clock().now() < limit) {
        for (const auto& engine : engines_) engine->progress();
        fleet_.step();
      }
      ASSERT_TRUE(operation->done()) << engines_.front()->state();
      ASSERT_TRUE(operation->status().ok()) << operation->status().message();
    }
  }

 private:
  VerbsFleet fleet_;
  std::vector<InlineCompute> computes_;
  std::vector<std::unique_ptr<Engine>> engines_;
};

class CanonicalRdma : public testing::TestWithParam<int> {};

TEST_P(CanonicalRdma, sums_have_the_bits_of_the_tree) {
  const int ranks = GetParam();
  for (const char* algorithm : {"", "direct", "halving_doubling", "two_level"}) {
    CanonicalEngines world(ranks, algorithm);
    std::mt19937_64 random(5);
    for (const Dtype dtype : kFloats) {
      SCOPED_TRACE(cat(ranks, " ranks, ", name_of(dtype), ", ", algorithm));
      std::vector<oracle::Bytes> values;
      for (int rank = 0; rank < ranks; ++rank) {
        values.push_back(oracle::random_operand(dtype, kCount, ReduceOp::sum, random));
      }
      const oracle::Bytes expected = oracle::reduce(dtype, ReduceOp::sum, values);
      world.sum(dtype, values);
      for (int rank = 0; rank < ranks; ++rank) EXPECT_TRUE(values[rank] == expected) << rank;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(ranks, CanonicalRdma, testing::Values(2, 3, 4, 5, 8));

}  // namespace
}  // namespace rdmacoll::conformance
