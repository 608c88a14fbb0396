// Tests the whole engine over real transports, with every number of ranks that is a special case.
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <map>
#include <numeric>
#include <random>
#include <span>

#include "algorithm_names.h"
#include "collectives/algorithms.h"
#include "every_kind.h"
#include "multiprocess/local_world.h"
#include "sim/values.h"
#include "unit/reduce_oracle.h"

namespace rdmacoll {
namespace {

struct Setup {
  const char* name;
  const char* settings;
};
constexpr Setup kSetups[] = {
    {"shm", "RDMACOLL_TRANSPORT=shm\n"},
    {"shm_slots", "RDMACOLL_TRANSPORT=shm\nRDMACOLL_ONE_COPY=false\n"},
    {"shm_workers", "RDMACOLL_TRANSPORT=shm\nRDMACOLL_COMPUTE_WORKERS=1\n"},
    {"tcp", "RDMACOLL_TRANSPORT=tcp\n"},
    {"tcp_ring", "RDMACOLL_TRANSPORT=tcp\nRDMACOLL_ALLREDUCE_ALGORITHM=ring\n"},
    {"shm_ring_small_segments",
     "RDMACOLL_TRANSPORT=shm\nRDMACOLL_ALLREDUCE_ALGORITHM=ring\nRDMACOLL_SEGMENT_BYTES=4096\n"},
};

// Checks for equal bits. It compares whole arrays, since an assertion for each element would be
// slow.
template <typename T>
testing::AssertionResult same(std::span<const T> got, const std::vector<T>& expected) {
  if (got.size() != expected.size()) {
    return testing::AssertionFailure() << got.size() << " elements, not " << expected.size();
  }
  if (got.empty() || std::memcmp(got.data(), expected.data(), got.size_bytes()) == 0) {
    return testing::AssertionSuccess();
  }
  std::size_t at = 0;
  while (std::memcmp(&got[at], &expected[at], sizeof(T)) == 0) ++at;
  return testing::AssertionFailure()
         << got[at] << ", not " << expected[at] << ", as element " << at << " of " << got.size();
}

class Collectives : public testing::TestWithParam<std::tuple<int, int>> {
 protected:
  int ranks() const { return std::get<0>(GetParam()); }
  std::string settings() const { return kSetups[std::get<1>(GetParam())].settings; }
};

// Returns whole numbers, so that floats sum them exactly.
std::vector<int64_t> data_of(int rank, std::size_t count) {
  std::vector<int64_t> data(count);
  for (std::size_t i = 0; i < count; ++i) {
    data[i] = static_cast<int64_t>(i * 5 + rank * 11) % 101 - 50;
  }
  return data;
}

TEST_P(Collectives, sum_broadcast_and_gather_on_every_rank) {
  LocalWorld world(ranks(), settings());
  if (HasFatalFailure()) return;
  for (std::size_t count : {0u, 1u, 7u, 1000u, 40'000u, 700'001u}) {
    std::vector<std::vector<int64_t>> inputs;
    std::vector<float> total(count);
    std::vector<int64_t> all;
    for (int rank = 0; rank < ranks(); ++rank) {
      inputs.push_back(data_of(rank, count));
      for (std::size_t i = 0; i < count; ++i) total[i] += static_cast<float>(inputs[rank][i]);
      all.resize(all.size() + count + rank, rank);
    }
    world.each([&](int rank) {
      std::vector<float> sum(inputs[rank].begin(), inputs[rank].end());
      Status status = run(world.rank(rank), in_place(Kind::allreduce, Dtype::float32, sum));
      ASSERT_TRUE(status.ok()) << status.message();
      ASSERT_TRUE(same<float>(sum, total)) << " on rank " << rank;

      std::vector<int64_t> copy = inputs[rank];
      Request broadcast = in_place(Kind::broadcast, Dtype::int64, copy, "weights");
      broadcast.root = SetRank(ranks() - 1);
      status = run(world.rank(rank), std::move(broadcast));
      ASSERT_TRUE(status.ok()) << status.message();
      ASSERT_TRUE(same<int64_t>(copy, inputs[ranks() - 1])) << " on rank " << rank;

      std::vector<int64_t> mine(count + rank, rank);
      Request gather = in_place(Kind::allgather, Dtype::int64, mine);
      const auto gathered = std::make_shared<Operation>(std::move(gather));
      ASSERT_TRUE(world.rank(rank).driver().submit_and_wait(gathered, 60 * kSecond).ok());
      ASSERT_TRUE(gathered->done() && gathered->status().ok()) << gathered->status().message();
      ASSERT_EQ(gathered->results[0].bytes, all.size() * sizeof(int64_t));
      const auto* values = reinterpret_cast<const int64_t*>(gathered->results[0].memory.get());
      ASSERT_TRUE(same<int64_t>({values, all.size()}, all)) << " on rank " << rank;

      Request barrier;
      barrier.kind = Kind::barrier;
      ASSERT_TRUE(run(world.rank(rank), std::move(barrier)).ok());
    });
    if (HasFailure()) return;
  }
}

TEST_P(Collectives, every_kind_has_its_results_and_many_kinds_at_once) {
  LocalWorld world(ranks(), settings());
  if (HasFatalFailure()) return;
  for (const int64_t rows : {0, 1, 50, 20'000}) {
    const std::vector<SimOperation> kinds = every_kind(ranks(), rows, rows == 50);
    world.each([&](int rank) {
      std::vector<SimMemory> memory(kinds.size());
      std::vector<OperationRef> operations;
      for (std::size_t i = 0; i < kinds.size(); ++i) {
        operations.push_back(
            std::make_shared<Operation>(sim_request(kinds[i], rank, i % 2 == 0, memory[i])));
        const Status status = world.rank(rank).driver().submit(operations.back());
        ASSERT_TRUE(status.ok()) << status.message();
      }
      for (std::size_t i = 0; i < kinds.size(); ++i) {
        ASSERT_TRUE(world.rank(rank).driver().wait(*operations[i], 60 * kSecond))
            << world.rank(rank).state();
        ASSERT_TRUE(operations[i]->status().ok()) << operations[i]->status().message();
        ASSERT_EQ(sim_error(kinds[i], ranks(), rank, *operations[i]), "")
            << kinds[i].name << " of " << rows << " rows on rank " << rank;
      }
    });
    if (HasFailure()) return;
  }
}

TEST_P(Collectives, many_in_flight_in_another_order_on_each_rank) {
  LocalWorld world(ranks(), settings());
  if (HasFatalFailure()) return;
  constexpr int kOperations = 60;
  world.each([&](int rank) {
    std::mt19937 random(static_cast<unsigned>(rank) + 1);
    std::vector<int> order(kOperations);
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), random);
    std::vector<std::vector<float>> data(kOperations);
    std::vector<OperationRef> operations;
    for (int index : order) {
      data[index].assign(1 + static_cast<std::size_t>(index) * index * 37,
                         static_cast<float>(rank + index));
      operations.push_back(std::make_shared<Operation>(
          in_place(Kind::allreduce, Dtype::float32, data[index], cat("gradient", index))));
      const Status status = world.rank(rank).driver().submit(operations.back());
      ASSERT_TRUE(status.ok()) << status.message();
    }
    for (const OperationRef& operation : operations) {
      ASSERT_TRUE(world.rank(rank).driver().wait(*operation, 60 * kSecond))
          << world.rank(rank).state();
      ASSERT_TRUE(operation->status().ok()) << operation->status().message();
    }
    for (int index = 0; index < kOperations; ++index) {
      const auto expected = static_cast<float>(ranks() * index + ranks() * (ranks() - 1) / 2);
      const std::vector<float> wanted(data[index].size(), expected);
      ASSERT_TRUE(same<float>(data[index], wanted)) << " of operation " << index;
    }
  });
}

TEST_P(Collectives, several_threads_of_a_rank_wait_at_once) {
  LocalWorld world(ranks(), settings());
  if (HasFatalFailure()) return;
  world.each([&](int rank) {
    std::vector<std::thread> threads;
    for (int thread = 0; thread < 3; ++thread) {
      threads.emplace_back([&, thread] {
        for (int turn = 0; turn < 20; ++turn) {
          std::vector<double> values(100 + static_cast<std::size_t>(thread) * 5000, rank + turn);
          const Status status = run(world.rank(rank), in_place(Kind::allreduce, Dtype::float64,
                                                               values, cat("thread", thread)));
          ASSERT_TRUE(status.ok()) << status.message();
          ASSERT_EQ(values.back(), ranks() * turn + ranks() * (ranks() - 1) / 2.0);
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
  });
}

INSTANTIATE_TEST_SUITE_P(worlds, Collectives,
                         testing::Combine(testing::Values(1, 2, 3, 4, 5, 8),
                                          testing::Range(0, static_cast<int>(std::size(kSetups)))),
                         [](const auto& info) {
                           return cat(kSetups[std::get<1>(info.param)].name, "_",
                                      std::get<0>(info.param), "_ranks");
                         });

// ---- the canonical order ----

class Canonical : public testing::TestWithParam<int> {};

// 16-bit floats are rounded once, with any forced algorithm.
TEST_P(Canonical, sums_have_the_same_bits_over_any_transport_algorithm_and_cut) {
  const int ranks = GetParam();
  constexpr std::size_t kCount = 30'011;
  constexpr Dtype kFloats[] = {Dtype::float32, Dtype::float16, Dtype::bfloat16};
  std::mt19937_64 random(99);
  std::map<Dtype, std::vector<oracle::Bytes>> inputs;
  std::map<Dtype, oracle::Bytes> expected;
  for (const Dtype dtype : kFloats) {
    for (int rank = 0; rank < ranks; ++rank) {
      inputs[dtype].push_back(oracle::random_operand(dtype, kCount, ReduceOp::sum, random));
    }
    expected[dtype] = oracle::reduce(dtype, ReduceOp::sum, inputs[dtype]);
  }
  std::vector<std::string> setups = {
      "RDMACOLL_TRANSPORT=shm\n", "RDMACOLL_TRANSPORT=tcp\n",
      "RDMACOLL_TRANSPORT=shm\nRDMACOLL_ONE_COPY=false\nRDMACOLL_SEGMENT_BYTES=8192\n"};
  for (const AlgorithmRow& row : algorithm_table()) {
    const bool is_other = row.algorithm == named::ring || row.by_servers;
    if (row.result != AlgorithmRow::Result::sum || is_other) continue;
    for (const char* transport : {"shm", "tcp\nRDMACOLL_SEGMENT_BYTES=7000"}) {
      setups.push_back(
          cat("RDMACOLL_ALLREDUCE_ALGORITHM=", row.name, "\nRDMACOLL_TRANSPORT=", transport, "\n"));
    }
  }
  for (const std::string& settings : setups) {
    LocalWorld world(ranks, cat("RDMACOLL_ORDER=canonical\n", settings));
    if (HasFatalFailure()) return;
    world.each([&](int rank) {
      for (const Dtype dtype : kFloats) {
        oracle::Bytes sum = inputs.at(dtype)[rank];
        Request request = in_place(Kind::allreduce, dtype, sum);
        request.tensors.front().dims = {kCount};
        ASSERT_TRUE(run(world.rank(rank), std::move(request)).ok());
        ASSERT_TRUE(sum == expected.at(dtype)) << name_of(dtype) << " with " << settings;
      }
    });
  }
}

INSTANTIATE_TEST_SUITE_P(ranks, Canonical, testing::Values(2, 3, 4, 5, 6, 7, 8));

}  // namespace
}  // namespace rdmacoll
