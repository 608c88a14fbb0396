// Large variables in a store, and rows that get no gradient for a long time.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <cmath>
#include <fstream>
#include <numeric>
#include <random>

#include "unit/ps_store.h"

namespace rdmacoll::ps {
namespace {

// A gradient that arrives while a row catches up moves the row like any other gradient. This holds
// for both kinds of pushes.
class StoreSettles : public testing::TestWithParam<bool> {};

TEST_P(StoreSettles, anew_behind_a_gradient) {
  const bool by_rows = GetParam();
  const std::string rule = "optimizer=sgd\nmomentum=0.9\ninitial_learning_rate=0.1\n";
  Store sparse = store_of(rule, kByRows), dense = store_of(rule, kDense);
  const std::vector<float> gradient(kElements, 1), zeros(kElements, 0);
  const auto rest = [&](int updates) {
    for (int i = 0; i < updates; ++i) dense.update(0, dense.begin_update(0), 0, bytes_of(zeros));
  };
  const auto push = [&](Store& store) {
    store.update(0, store.begin_update(0), 0, bytes_of(gradient));
  };
  push(sparse);
  push(dense);
  const uint64_t first_missed = sparse.updates(0);
  constexpr int kDone = 260, kMissed = kDone + 5;  // some updates before the row settles
  for (int i = 0; i < kMissed; ++i) sparse.begin_update(0);
  uint64_t row = 0, left = kDone * kColumns;
  EXPECT_FALSE(sparse.catch_up(0, sparse.updates(0), row, left));
  EXPECT_EQ(row, 0U);
  if (by_rows) {  // this update began before the row caught up
    left = kPlenty;
    const std::vector<int64_t> rows = {0};
    ASSERT_EQ(sparse.update_rows(0, first_missed, rows,
                                 reinterpret_cast<const std::byte*>(gradient.data()), left),
              1U);
    sparse.begin_update(0);
  } else {
    push(sparse);
  }
  for (int i = 0; i < 100; ++i) sparse.begin_update(0);
  rest(kDone);
  push(dense);
  rest(kMissed - kDone + 100);
  const std::vector<float> expected = values_of(dense), reached = values_of(sparse);
  for (std::size_t i = 0; i < kColumns; ++i) EXPECT_EQ(reached[i], expected[i]) << i;
}

INSTANTIATE_TEST_SUITE_P(Ways, StoreSettles, testing::Bool());

// Both rows catch up in turns, in slices that are shorter than a row's work.
TEST(Store, rows_settle_also_where_others_catch_up) {
  Store store = store_of("optimizer=adam\n", kByRows);
  const std::vector<float> gradient(kElements, 1);
  store.update(0, store.begin_update(0), 0, bytes_of(gradient));
  for (int i = 0; i < 100'000; ++i) store.begin_update(0);
  std::vector<float> values(kColumns);
  int slices = 0;
  const auto read = [&](int64_t row) {
    uint64_t left = 10 * kColumns;
    ++slices;
    return store.read_rows(0, {&row, 1}, reinterpret_cast<std::byte*>(values.data()), left) == 1;
  };
  for (bool one = false, other = false; !one || !other;) {
    one = one || read(2);
    other = other || read(5);
    ASSERT_LT(slices, 1000);
  }
  EXPECT_THAT(slices, testing::AllOf(testing::Ge(2 * 26), testing::Le(2 * 28)));
}

#ifndef __SANITIZE_THREAD__  // this sanitizer writes to allocated memory

uint64_t resident_bytes() {
  std::ifstream stat("/proc/self/statm");
  uint64_t all = 0, resident = 0;
  stat >> all >> resident;
  return resident * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
}

// Touching it would keep the server silent for so long that its workers would take it for dead.
TEST(Store, declares_what_is_large_without_touching_it) {
  constexpr uint64_t kLarge = uint64_t{1} << 26;
  const StoredSpec large{"w", Dtype::float32, true, kLarge, 4, {1 << 24, 4}};
  const uint64_t before = resident_bytes();
  Store store = store_of("optimizer=adam\n", large);
  store.set_initialized(0, 7);
  EXPECT_GE(store.bytes(), 3 * kLarge * sizeof(float));
  EXPECT_LT(resident_bytes(), before + kLarge);
}

#endif

TEST(Store, looks_at_rows_in_slices) {
  Store store = store_of("optimizer=adam\n", kByRows);
  store.set_initialized(0, 7);
  uint64_t row = 0, left = 4;
  EXPECT_FALSE(store.catch_up(0, 7, row, left));
  EXPECT_EQ(row, 4U);
  EXPECT_EQ(left, 0U);
  left = kRows;
  EXPECT_TRUE(store.catch_up(0, 7, row, left));
}

TEST(Store, fills_slots_in_slices) {
  Store store;
  const std::array<StoredSpec, 2> specs = {kDense, kByRows};
  ASSERT_TRUE(store.declare("optimizer=adagrad\n", 0, specs).ok());
  const StoredSpec wide{"x", Dtype::float64, true, 7, 0, {7}};
  ASSERT_TRUE(
      store.declare("optimizer=adagrad\ninitial_accumulator_value=3\n", 2, {&wide, 1}).ok());
  EXPECT_FALSE(store.is_filled());
  int slices = 0;
  for (bool is_done = false; !is_done; ++slices) {
    uint64_t left = 10;
    is_done = store.fill(left);
    EXPECT_TRUE(is_done || left == 0);
  }
  EXPECT_EQ(slices, 1 + (2 * static_cast<int>(kElements) + 7) / 10);
  EXPECT_TRUE(store.is_filled());
  for (const std::size_t variable : {0, 1}) {
    const auto slot = store.stored(variable, 1, 0, kElements * sizeof(float));
    const auto* first = reinterpret_cast<const float*>(slot.data());
    EXPECT_EQ(std::vector<float>(first, first + kElements), std::vector<float>(kElements, 0.1F));
  }
  const auto* third = reinterpret_cast<const double*>(store.stored(2, 1, 0, 56).data());
  EXPECT_EQ(std::vector<double>(third, third + 7), std::vector<double>(7, 3));
}

// A row without gradients for a long time ends as after all missed updates, with the work of a few.
class StoreRest : public testing::TestWithParam<const char*> {};

TEST_P(StoreRest, takes_no_longer_than_until_values_settle) {
  constexpr uint64_t kMissed = 20000, kWorkMost = 3000;
  const std::string rule = std::string("initial_learning_rate=0.01\n") + GetParam();
  Store dense = store_of(rule, kDense), sparse = store_of(rule, kByRows);
  std::mt19937 random(11);
  std::vector<float> gradient(kElements);
  for (float& one : gradient) one = std::normal_distribution<float>()(random);
  std::vector<int64_t> rows(kRows);
  std::iota(rows.begin(), rows.end(), 0);
  const auto push = [&] {
    uint64_t left = kPlenty;
    dense.update(0, dense.begin_update(0), 0, bytes_of(gradient));
    ASSERT_EQ(sparse.update_rows(0, sparse.begin_update(0), rows,
                                 reinterpret_cast<const std::byte*>(gradient.data()), left),
              kRows);
  };
  for (int i = 0; i < 5; ++i) push();
  const std::vector<float> zeros(kElements, 0);
  for (uint64_t i = 0; i < kMissed; ++i) {
    dense.update(0, dense.begin_update(0), 0, bytes_of(zeros));
    sparse.begin_update(0);
  }
  uint64_t row = 0, work = 0;
  for (bool is_done = false; !is_done;) {
    uint64_t left = 7;
    is_done = sparse.catch_up(0, sparse.updates(0), row, left);
    work += 7 - left;
  }
  EXPECT_LT(work / kElements, kWorkMost);
  push();  // both stores' slots have faded alike
  const std::vector<float> expected = values_of(dense), reached = values_of(sparse);
  for (std::size_t i = 0; i < kElements; ++i) {
    EXPECT_NEAR(reached[i], expected[i], 1e-4 * std::abs(expected[i]) + 1e-6) << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Rules, StoreRest,
                         testing::Values("optimizer=sgd\nmomentum=0.9",
                                         "optimizer=sgd\nmomentum=0.99\nnesterov=1",
                                         "optimizer=adam", "optimizer=adam\namsgrad=1",
                                         "optimizer=adam\nbeta_1=0", "optimizer=rmsprop",
                                         "optimizer=rmsprop\ncentered=1",
                                         "optimizer=rmsprop\nmomentum=0.5\ncentered=1"));

}  // namespace
}  // namespace rdmacoll::ps
