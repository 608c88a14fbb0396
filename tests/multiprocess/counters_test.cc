// Performance without noise: counters of what collectives make, copy and send. And trials, which
// change no result.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/fd.h"
#include "collectives/choose.h"
#include "execution/executor.h"
#include "multiprocess/local_world.h"

namespace rdmacoll {
namespace {

std::map<std::string, double> metrics_of(Session& session) {
  std::map<std::string, double> metrics;
  const std::string json = session.metrics();
  for (std::size_t at = json.find('"'); at != std::string::npos; at = json.find('"', at)) {
    const std::size_t end = json.find('"', at + 1);
    metrics[json.substr(at + 1, end - at - 1)] = std::stod(json.substr(end + 2));
    at = end + 1;
  }
  return metrics;
}

// Returns the bytes that a rank copies beside its reductions. A rank copies the parts that other
// ranks have reduced, (p-1)/p of the bytes. If the caller's memory is packed, it also copies its
// data for these parts, and its own part: once for all readers, or once for each in write_back.
double copied_bytes(int ranks, double bytes, bool is_packed, bool writes_back = false) {
  const double others = bytes * (ranks - 1) / ranks;
  if (writes_back) return 3 * others;
  return is_packed ? 2 * others + bytes / ranks : others;
}

TEST(Counters, steady_state_makes_nothing_new_and_copies_no_more_than_the_formula) {
  const uint64_t large = Tuning().one_copy_bytes_scattered;
  struct Case {
    uint64_t bytes;
    bool is_packed;
    bool writes_back = false;
  };
  for (const int ranks : {2, 4}) {
    for (const Case& one : {Case{large / 16, true}, Case{large, true}, Case{large, false},
                            Case{large / 16, true, true}, Case{large, true, true}}) {
      LocalWorld world(
          ranks, cat("RDMACOLL_TRANSPORT=shm\n", "RDMACOLL_TUNE=off\n",
                     "RDMACOLL_ALLREDUCE_ALGORITHM=", one.writes_back ? "write_back\n" : "direct\n",
                     one.is_packed ? "" : "RDMACOLL_ONE_COPY=true\n"));
      if (HasFatalFailure()) return;
      constexpr int kSteps = 10;
      world.each([&](int rank) {
        Session& session = world.rank(rank);
        std::vector<float> gradient(one.bytes / sizeof(float), 1.f);
        const auto step = [&] {
          ASSERT_TRUE(run(session, in_place(Kind::allreduce, Dtype::float32, gradient, "g")).ok());
        };
        for (int i = 0; i < 2 * kBatchesInFlight; ++i) step();  // every slot has its memory
        auto before = metrics_of(session);
        for (int i = 0; i < kSteps; ++i) step();
        auto after = metrics_of(session);
        const auto grown = [&](const char* name) { return after[name] - before[name]; };
        EXPECT_EQ(grown("engine_allocations"), 0);
        EXPECT_EQ(grown("handshakes"), 0);
        EXPECT_EQ(grown("registrations"), 0);
        EXPECT_EQ(grown("batches"), kSteps);
        EXPECT_EQ(grown("control_messages"), 0);  // the plan needs no messages
        EXPECT_LE(after["connections"], ranks - 1);
        const double copied =
            copied_bytes(ranks, static_cast<double>(one.bytes), one.is_packed, one.writes_back);
        EXPECT_LE(grown("bytes_copied"), kSteps * copied * 1.01);
      });
    }
  }
}

// The root tries both ways, in place and packed, and then keeps one of them.
TEST(Counters, trials_of_large_sums_end_in_a_plan_and_change_no_bit) {
  LocalWorld world(2, "RDMACOLL_TRANSPORT=shm\n");
  if (HasFatalFailure()) return;
  const int row = Tuning().trial_row;
  const std::size_t count = Tuning().trial_bytes_in_place / sizeof(float);
  const auto value = [](int rank, std::size_t i) {
    return 1.f / static_cast<float>(i % 977 + 1 + 3 * static_cast<std::size_t>(rank));
  };
  world.each([&](int rank) {
    Session& session = world.rank(rank);
    std::vector<float> expected(count), gradient(count);
    for (std::size_t i = 0; i < count; ++i) expected[i] = value(0, i) + value(1, i);
    double copied = 0;
    const auto sum = [&](int step) {
      for (std::size_t i = 0; i < count; ++i) gradient[i] = value(rank, i);
      ASSERT_TRUE(run(session, in_place(Kind::allreduce, Dtype::float32, gradient, "g")).ok());
      ASSERT_TRUE(gradient == expected) << step;
    };
    // At most three rivals with six rows each, in place first, and then a plan.
    for (int step = 0; step < 19 * row; ++step) {
      sum(step);
      if (step >= 2 * row) continue;
      const double copied_before = std::exchange(copied, metrics_of(session)["bytes_copied"]);
      const bool is_packed = step / row % 2 == 0;
      const double bytes = copied_bytes(2, count * sizeof(float), is_packed);
      EXPECT_NEAR(copied - copied_before, bytes, bytes * 0.01) << step;
      if (step != 2 * row - 1) continue;
      EXPECT_EQ(metrics_of(session)["batches_in_place"], row);
      EXPECT_EQ(metrics_of(session)["plans"], 0);
    }
    EXPECT_EQ(metrics_of(session)["plans"], 1);
    const double in_place_before = metrics_of(session)["batches_in_place"];
    for (int step = 0; step < row; ++step) sum(step);
    const double more = metrics_of(session)["batches_in_place"] - in_place_before;
    EXPECT_TRUE(more == 0 || more == row) << more;  // one way stays
  });
}

// RDMACOLL_ONE_COPY settles one question of the trials. They go on about algorithms.
TEST(Counters, trials_go_on_if_one_copy_is_set) {
  const int row = Tuning().trial_row;
  const std::size_t count = Tuning().trial_bytes_in_place / sizeof(float);
  struct Case {
    const char* settings;
    int plans;
  };
  for (const Case& one : {Case{"RDMACOLL_TUNE=off\n", 1}, Case{"RDMACOLL_ONE_COPY=false\n", 0},
                          Case{"RDMACOLL_ONE_COPY=true\n", 0}}) {
    LocalWorld world(2, cat("RDMACOLL_TRANSPORT=shm\n", one.settings));
    if (HasFatalFailure()) return;
    world.each([&](int rank) {
      Session& session = world.rank(rank);
      std::vector<float> gradient(count);
      for (int step = 0; step < 2 * row; ++step) {
        ASSERT_TRUE(run(session, in_place(Kind::allreduce, Dtype::float32, gradient, "g")).ok());
      }
      auto metrics = metrics_of(session);
      EXPECT_EQ(metrics["plans"], one.plans) << one.settings;
      EXPECT_EQ(metrics["batches_in_place"], 0) << one.settings;
    });
  }
}

// The canonical order: a binary tree over the ranks, split at the largest power of two.
float canonical_sum(std::span<const float> values) {
  if (values.size() == 1) return values[0];
  const std::size_t half = std::bit_ceil(values.size()) / 2;
  return canonical_sum(values.first(half)) + canonical_sum(values.subspan(half));
}

// The sums of three and more such numbers depend on the order of additions.
float value_of(int rank, std::size_t i) {
  const float sign = (i + static_cast<std::size_t>(rank)) % 3 == 0 ? -1.f : 1.f;
  const auto divisor = static_cast<float>(i % 977 + 1 + 3 * static_cast<std::size_t>(rank));
  return std::ldexp(sign / divisor,
                    static_cast<int>(i * 7 + static_cast<std::size_t>(rank) * 5) % 16);
}

// The gradients of all ranks, and their sum.
struct Gradients {
  Gradients(int ranks, std::size_t count) : of_rank(static_cast<std::size_t>(ranks)), sum(count) {
    std::vector<float> of_element(of_rank.size());
    for (std::vector<float>& values : of_rank) values.resize(count);
    for (std::size_t i = 0; i < count; ++i) {
      float in_turn = 0;
      for (int rank = 0; rank < ranks; ++rank) {
        const auto at = static_cast<std::size_t>(rank);
        of_element[at] = of_rank[at][i] = value_of(rank, i);
        in_turn += of_element[at];
      }
      sum[i] = canonical_sum(of_element);
      different += in_turn != sum[i] ? 1 : 0;
    }
  }
  std::vector<std::vector<float>> of_rank;
  std::vector<float> sum;
  std::size_t different = 0;  // elements that another order of additions changes
};

TEST(Trials, change_no_bit_of_sums_that_depend_on_their_order) {
  const std::size_t large = Tuning().trial_bytes_in_place, small = large / 8;
  struct Case {
    int ranks;
    const char* order;
    std::size_t bytes;
  };
  for (const Case& one : {Case{3, "run", small}, Case{4, "run", large}, Case{5, "run", small},
                          Case{5, "canonical", small}}) {
    LocalWorld world(one.ranks, cat("RDMACOLL_TRANSPORT=shm\nRDMACOLL_ORDER=", one.order, "\n"));
    if (HasFatalFailure()) return;
    const Gradients gradients(one.ranks, one.bytes / sizeof(float));
    // The canonical order of three ranks is the one in turn.
    EXPECT_TRUE(one.ranks == 3 || gradients.different > gradients.sum.size() / 20);
    world.each([&](int rank) {
      std::vector<float> gradient;
      // At most three rivals in three rounds, and then a plan.
      for (int step = 0; step < 14 * Tuning().trial_row; ++step) {
        gradient = gradients.of_rank[static_cast<std::size_t>(rank)];
        Request request = in_place(Kind::allreduce, Dtype::float32, gradient, "g");
        ASSERT_TRUE(run(world.rank(rank), std::move(request)).ok());
        ASSERT_TRUE(std::memcmp(gradient.data(), gradients.sum.data(), one.bytes) == 0)
            << "step " << step << " of " << one.ranks << " ranks, order " << one.order;
      }
      EXPECT_GE(metrics_of(world.rank(rank))["plans"], 1);
    });
  }
}

// Memory that its own process can read, and no other one.
class SecretMemory {
 public:
  explicit SecretMemory(std::size_t bytes) : bytes_(bytes) {
    constexpr long kMemfdSecret = 447;
    const Fd file(static_cast<int>(::syscall(kMemfdSecret, 0)));
    // Kernels before 5.14 have none, so that any memory has to do.
    const bool is_secret = file && ::ftruncate(file.get(), static_cast<off_t>(bytes)) == 0;
    const int flags = is_secret ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS;
    data_ = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, flags, is_secret ? file.get() : -1, 0);
  }
  ~SecretMemory() { ::munmap(data_, bytes_); }
  float* data() const { return static_cast<float*>(data_); }

 private:
  std::size_t bytes_;
  void* data_;
};

TEST(Trials, of_memory_that_peers_cannot_read_end_well) {
  LocalWorld world(2, "RDMACOLL_TRANSPORT=shm\n");
  if (HasFatalFailure()) return;
  const auto count = static_cast<int64_t>(Tuning().one_copy_bytes_scattered / sizeof(float));
  world.each([&](int rank) {
    const SecretMemory memory(static_cast<std::size_t>(count) * sizeof(float));
    auto* const bytes = reinterpret_cast<std::byte*>(memory.data());
    for (int step = 0; step < 2 * Tuning().trial_row; ++step) {
      std::fill_n(memory.data(), count, static_cast<float>(rank + 1));
      Request request;
      request.name = "secret";
      request.tensors = {{bytes, bytes, {count}, ""}};
      const Status status = run(world.rank(rank), std::move(request));
      ASSERT_TRUE(status.ok()) << status.message();
      ASSERT_TRUE(std::all_of(memory.data(), memory.data() + count, [](float value) {
        return value == 3;
      })) << step;
    }
    Request scatter;
    scatter.kind = Kind::scatter;
    scatter.tensors = {{bytes, nullptr, {count}, ""}};
    const Status status = run(world.rank(rank), std::move(scatter));
    EXPECT_TRUE(status.ok()) << status.message();
  });
}

TEST(Counters, without_a_plan_each_step_costs_readiness_up_and_a_decision_down) {
  constexpr int kRanks = 3, kSteps = 10;
  LocalWorld world(kRanks, "RDMACOLL_PLAN_REPEATS=0\n");
  if (HasFatalFailure()) return;
  world.each([&](int rank) {
    std::vector<float> values(100, 1.f);
    const auto step = [&] {
      ASSERT_TRUE(run(world.rank(rank), in_place(Kind::allreduce, Dtype::float32, values)).ok());
    };
    for (int i = 0; i < 10; ++i) step();
    const double before = metrics_of(world.rank(rank))["control_messages"];
    for (int i = 0; i < kSteps; ++i) step();
    const double after = metrics_of(world.rank(rank))["control_messages"];
    EXPECT_EQ(after - before, kSteps * (rank == 0 ? kRanks - 1 : 1));
    EXPECT_EQ(metrics_of(world.rank(rank))["plans"], 0);
  });
}

TEST(Counters, a_ring_connects_its_neighbours_and_the_control_tree_only) {
  LocalWorld world(6, "RDMACOLL_TRANSPORT=tcp\nRDMACOLL_ALLREDUCE_ALGORITHM=ring\n");
  if (HasFatalFailure()) return;
  world.each([&](int rank) {
    std::vector<float> values(5000, 1.f);
    ASSERT_TRUE(run(world.rank(rank), in_place(Kind::allreduce, Dtype::float32, values)).ok());
    // In a control tree of this size, rank 0 is the parent of all others.
    const double expected = rank == 0 ? 5 : rank == 1 || rank == 5 ? 2 : 3;
    EXPECT_EQ(metrics_of(world.rank(rank))["connections"], expected) << "rank " << rank;
  });
}

}  // namespace
}  // namespace rdmacoll
