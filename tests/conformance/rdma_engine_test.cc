// Engines over RDMA, stepped by hand.
#include "compute/inline.h"
#include "conformance/verbs_fleet.h"
#include "engine/engine.h"
#include "every_kind.h"
#include "sim/values.h"

namespace rdmacoll::conformance {
namespace {

using verbs_sim::ethernet;

class RdmaEngines : public testing::Test {
 protected:
  RdmaEngines() {
    fleet_.meet_all();
    for (int rank = 0; rank < fleet_.size(); ++rank) {
      engines_.push_back(std::make_unique<Engine>(EngineParts{world_of(fleet_.size(), rank),
                                                              {},
                                                              fleet_.at(rank),
                                                              computes_[rank],
                                                              fleet_.pool(rank),
                                                              steady_clock(),
                                                              Log(LogLevel::error, rank)}));
    }
  }
  ~RdmaEngines() override {
    for (const auto& engine : engines_) engine->end();
  }

  OperationRef broadcast(int rank, std::vector<float>& values) {
    Request request;
    request.kind = Kind::broadcast;
    request.name = "values";
    auto* memory = reinterpret_cast<std::byte*>(values.data());
    request.tensors = {{memory, memory, {static_cast<int64_t>(values.size())}, ""}};
    auto operation = std::make_shared<Operation>(std::move(request));
    EXPECT_TRUE(engines_[rank]->submit(operation).ok());
    return operation;
  }
  uint64_t metric(int rank, std::string_view name) const {
    const std::string metrics = engines_[rank]->metrics_json({});
    const std::string key = cat("\"", name, "\": ");
    const std::size_t at = metrics.find(key);
    return at == std::string::npos ? 0 : std::stoull(metrics.substr(at + key.size()));
  }
  // Steps these engines until the operation is done.
  bool drive(const std::vector<int>& ranks, const OperationRef& operation) {
    const Nanoseconds limit = steady_clock().now() + 20 * kSecond;
    while (!operation->done() && steady_clock().now() < limit) {
      for (const int rank : ranks) {
        if (!operation->done()) engines_[rank]->progress();
      }
      if (fabric_steps_of_a_turn_ == 0) fleet_.step();
      for (int i = 0; i < fabric_steps_of_a_turn_; ++i) fleet_.fabric.step();
    }
    return operation->done();
  }

  int fabric_steps_of_a_turn_ = 0;  // 0: all data in flight arrives between two turns
  VerbsFleet fleet_{{.seed = 71},
                    {{.adapters = {ethernet(0)}},
                     {.adapters = {ethernet(1)}},
                     {.adapters = {ethernet(2)}},
                     {.adapters = {ethernet(3)}}}};
  std::array<InlineCompute, 4> computes_;
  std::vector<std::unique_ptr<Engine>> engines_;
};

// The caller goes on with other work, so no thread may poll the transport for a while.
TEST_F(RdmaEngines, what_a_rank_passes_on_is_on_its_way_when_its_own_part_is_done) {
  std::vector<std::vector<float>> values(4, std::vector<float>(100));
  values[0].assign(100, 3.5F);
  std::vector<OperationRef> operations;
  for (int rank = 0; rank < 4; ++rank) operations.push_back(broadcast(rank, values[rank]));
  ASSERT_TRUE(drive({0, 1, 3, 2}, operations[2]));
  ASSERT_FALSE(operations[3]->done());
  EXPECT_FALSE(fleet_.at(2).needs_poll());
  EXPECT_TRUE(drive({0, 1, 3}, operations[3])) << "has it from rank 2";
  EXPECT_EQ(values[3], values[0]);
}

// Eager and by rendezvous: parts that are empty, short, and longer than a chunk of the simulation.
TEST_F(RdmaEngines, every_kind_has_its_results) {
  const int ranks = fleet_.size();
  for (const int64_t rows : {0, 3, 3000, 100'000}) {
    for (const SimOperation& operation : every_kind(ranks, rows, rows == 3000)) {
      SCOPED_TRACE(cat(name_of(operation.kind), " of ", rows, " rows"));
      std::vector<SimMemory> memory(ranks);
      std::vector<OperationRef> operations;
      for (int rank = 0; rank < ranks; ++rank) {
        operations.push_back(
            std::make_shared<Operation>(sim_request(operation, rank, rank % 2 == 0, memory[rank])));
        ASSERT_TRUE(engines_[rank]->submit(operations.back()).ok());
      }
      for (int rank = 0; rank < ranks; ++rank) {
        ASSERT_TRUE(drive({0, 1, 2, 3}, operations[rank])) << engines_[rank]->state();
        ASSERT_TRUE(operations[rank]->status().ok()) << operations[rank]->status().message();
        EXPECT_EQ(sim_error(operation, ranks, rank, *operations[rank]), "") << "rank " << rank;
      }
    }
  }
}

// A ring's reductions do not hold up its links: segments follow each other.
TEST_F(RdmaEngines, reduce_while_their_data_is_under_way) {
  fabric_steps_of_a_turn_ = 8;  // a transfer takes several turns
  const int ranks = fleet_.size();
  const SimOperation sum{.name = "sum", .shapes = {{2'000'000}}};
  std::vector<SimMemory> memory(ranks);
  std::vector<OperationRef> operations;
  for (int rank = 0; rank < ranks; ++rank) {
    operations.push_back(
        std::make_shared<Operation>(sim_request(sum, rank, /*in_place=*/true, memory[rank])));
    ASSERT_TRUE(engines_[rank]->submit(operations.back()).ok());
  }
  for (int rank = 0; rank < ranks; ++rank) {
    ASSERT_TRUE(drive({0, 1, 2, 3}, operations[rank])) << engines_[rank]->state();
    EXPECT_EQ(sim_error(sum, ranks, rank, *operations[rank]), "");
    const uint64_t reduced = metric(rank, "bytes_reduced");
    EXPECT_GE(reduced, 3 * 8'000'000 / 4);
    EXPECT_GE(metric(rank, "bytes_reduced_beside_sends"), reduced * 2 / 3);
  }
}

}  // namespace
}  // namespace rdmacoll::conformance
