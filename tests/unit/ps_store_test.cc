// The variables that a server owns, and their updates.
#include "unit/ps_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <random>

#include "ps/sharding.h"

namespace rdmacoll::ps {
namespace {

TEST(Store, updates_in_portions_as_in_one) {
  const std::string rule = "optimizer=adam\ninitial_learning_rate=0.1\n";
  Store whole = store_of(rule, kDense), portions = store_of(rule, kDense);
  std::mt19937 random(3);
  for (int i = 0; i < 5; ++i) {
    std::vector<float> gradient(kElements);
    for (float& one : gradient) one = std::normal_distribution<float>()(random);
    whole.update(0, whole.begin_update(0), 0, bytes_of(gradient));
    const uint64_t step = portions.begin_update(0);
    const std::size_t cut = 1 + random() % (kElements - 1);
    portions.update(0, step, cut, bytes_of(gradient).subspan(cut * 4));
    portions.update(0, step, 0, bytes_of(gradient).first(cut * 4));
  }
  EXPECT_EQ(values_of(whole), values_of(portions));
  EXPECT_EQ(whole.updates(0), 5U);
}

// Calls `step` in slices. A slice has so few elements that it hardly completes a row.
void in_slices(const std::function<bool(uint64_t&)>& step) {
  for (int slices = 0;; ++slices) {
    ASSERT_LT(slices, 1000);
    uint64_t left = 1;
    if (step(left)) return;
  }
}

// A push of some rows changes all rows like a gradient that is zero in the other rows, as in Keras.
class StoreRows : public testing::TestWithParam<const char*> {};

TEST_P(StoreRows, change_as_with_zeros_for_the_others) {
  const std::string rule = std::string("initial_learning_rate=0.1\n") + GetParam();
  Store dense = store_of(rule, kDense), sparse = store_of(rule, kByRows);
  std::mt19937 random(5);
  std::vector<float> start(kElements);
  for (float& one : start) one = std::normal_distribution<float>()(random);
  dense.write(0, 0, 0, bytes_of(start));
  sparse.write(0, 0, 0, bytes_of(start));
  for (int i = 0; i < 40; ++i) {
    std::vector<float> gradient(kElements, 0), named;
    std::vector<int64_t> rows;
    for (uint64_t row = 0; row < kRows; ++row) {
      if (random() % 4 != 0) continue;
      rows.push_back(static_cast<int64_t>(row));
      for (uint64_t column = 0; column < kColumns; ++column) {
        named.push_back(std::normal_distribution<float>()(random));
        gradient[row * kColumns + column] = named.back();
      }
    }
    dense.update(0, dense.begin_update(0), 0, bytes_of(gradient));
    if (i % 11 == 10) {  // both ways to push one variable
      const uint64_t step = sparse.begin_update(0);
      uint64_t row = 0;
      in_slices([&](uint64_t& left) { return sparse.catch_up(0, step, row, left); });
      sparse.update(0, step, 0, bytes_of(gradient));
    } else {
      const uint64_t step = sparse.begin_update(0);
      std::size_t done = 0;
      in_slices([&](uint64_t& left) {
        const auto* values = reinterpret_cast<const std::byte*>(named.data() + done * kColumns);
        done += sparse.update_rows(0, step, std::span(rows).subspan(done), values, left);
        return done == rows.size();
      });
    }
    if (i % 7 == 0) {
      const std::vector<int64_t> asked = {8, 0, 3};
      std::vector<float> read(asked.size() * kColumns);
      std::size_t done = 0;
      in_slices([&](uint64_t& left) {
        auto* values = reinterpret_cast<std::byte*>(read.data() + done * kColumns);
        done += sparse.read_rows(0, std::span(asked).subspan(done), values, left);
        return done == asked.size();
      });
      const std::vector<float> expected = values_of(dense);
      for (std::size_t at = 0; at < read.size(); ++at) {
        const auto row = static_cast<std::size_t>(asked[at / kColumns]);
        EXPECT_EQ(read[at], expected[row * kColumns + at % kColumns]) << "step " << i;
      }
    }
  }
  EXPECT_EQ(values_of(dense), values_of(sparse));
}

INSTANTIATE_TEST_SUITE_P(Rules, StoreRows,
                         testing::Values("optimizer=sgd", "optimizer=sgd\nmomentum=0.9",
                                         "optimizer=sgd\nmomentum=0.9\nnesterov=1",
                                         "optimizer=sgd\nweight_decay=0.1", "optimizer=adam",
                                         "optimizer=adam\namsgrad=1\nbeta_2=0.5",
                                         "optimizer=adam\nweight_decay=0.1", "optimizer=rmsprop",
                                         "optimizer=rmsprop\nmomentum=0.5\ncentered=1",
                                         "optimizer=adagrad"));

TEST(Store, pushes_of_one_row_leave_the_others_alone) {
  Store store = store_of("optimizer=adam\ninitial_learning_rate=0.1", kByRows);
  store.write(0, 0, 0, bytes_of(std::vector<float>(kElements, 1)));
  const std::vector<float> gradient(kColumns, 1);
  const std::vector<int64_t> row = {4};
  uint64_t left = kPlenty;
  EXPECT_EQ(store.update_rows(0, store.begin_update(0), row,
                              reinterpret_cast<const std::byte*>(gradient.data()), left),
            1U);
  const std::vector<float> values = values_of(store);
  for (std::size_t i = 0; i < kElements; ++i) {
    EXPECT_EQ(values[i] != 1, i / kColumns == 4) << i;
  }
}

// For any number of missed updates, no call makes more updates than its limit.
TEST(Store, rows_catch_up_in_slices) {
  Store store = store_of("optimizer=adam\ninitial_learning_rate=0.1", kByRows);
  const std::vector<float> gradient(kColumns, 1);
  const std::vector<int64_t> last = {kRows - 1};
  const auto push = [&] {
    uint64_t left = kPlenty;
    store.update_rows(0, store.begin_update(0), last,
                      reinterpret_cast<const std::byte*>(gradient.data()), left);
  };
  push();
  constexpr uint64_t kMissed = 250, kSlice = 20 * kColumns;
  for (uint64_t i = 0; i < kMissed; ++i) store.begin_update(0);
  uint64_t slices = 0, row = 0;
  for (bool is_done = false; !is_done; ++slices) {
    uint64_t left = kSlice;
    is_done = store.catch_up(0, store.updates(0), row, left);
    EXPECT_TRUE(is_done || left == 0);
  }
  EXPECT_THAT(slices, testing::AllOf(testing::Ge(kMissed * kColumns / kSlice),
                                     testing::Le(2 + kMissed * kColumns / kSlice)));
}

// As above, but each update has its own rate. Missed updates use their rates, too.
TEST_P(StoreRows, make_up_for_updates_at_the_rates_that_came_with_them) {
  const std::string rule = std::string("initial_learning_rate=0.1\n") + GetParam();
  Store dense = store_of(rule, kDense), sparse = store_of(rule, kByRows);
  for (Store* store : {&dense, &sparse}) {
    store->write(0, 0, 0, bytes_of(std::vector<float>(kElements, 1)));
    store->set_initialized(0);
  }
  std::mt19937 random(7);
  for (int i = 0; i < 60; ++i) {
    std::optional<double> rate;  // some by the rule
    if (i >= 5 && random() % 3 != 0) rate = 0.01 * static_cast<double>(random() % 4);
    const std::vector<int64_t> row = {static_cast<int64_t>(random() % kRows)};
    const std::vector<float> named(kColumns, 1 + static_cast<float>(i % 3));
    std::vector<float> gradient(kElements, 0);
    std::copy(named.begin(), named.end(),
              gradient.begin() + row[0] * static_cast<int64_t>(kColumns));
    dense.update(0, dense.begin_update(0, rate), 0, bytes_of(gradient), rate);
    uint64_t left = kPlenty;
    ASSERT_EQ(sparse.update_rows(0, sparse.begin_update(0, rate), row,
                                 reinterpret_cast<const std::byte*>(named.data()), left, rate),
              1U);
  }
  EXPECT_EQ(values_of(dense), values_of(sparse));
}

TEST(PushedRates, are_kept_where_they_change_and_not_without_end) {
  PushedRates rates;
  EXPECT_EQ(rates.at(3), std::nullopt);
  rates.note(0, std::nullopt);
  rates.note(4, 0.5);
  rates.note(5, 0.5);
  rates.note(6, std::nullopt);
  rates.note(9, 0.25);
  for (const uint64_t by_rule : {0, 3, 6, 8}) EXPECT_EQ(rates.at(by_rule), std::nullopt);
  EXPECT_EQ(rates.at(5), 0.5);
  EXPECT_EQ(rates.at(1000), 0.25);
  constexpr auto kMost = static_cast<uint64_t>(PushedRates::kChangesMax);
  for (uint64_t i = 10; i < 10 + 2 * kMost; ++i) rates.note(i, static_cast<double>(i));
  EXPECT_EQ(rates.at(9 + 2 * kMost), static_cast<double>(9 + 2 * kMost));
  EXPECT_EQ(rates.at(10 + kMost * 3 / 2), static_cast<double>(10 + kMost * 3 / 2));
  EXPECT_GE(*rates.at(0), static_cast<double>(kMost / 2)) << "the oldest that is known";
  rates.clear();
  EXPECT_EQ(rates.at(5), std::nullopt);
}

// accum = accum * momentum + gradient; var -= accum * rate.
// With Nesterov's: var -= gradient * rate + accum * momentum * rate.
TEST(Store, has_the_momentum_of_tensorflow_1) {
  for (const bool nesterov : {false, true}) {
    const std::string rule = std::string("optimizer=sgd\nmomentum=0.5\nrate_behind_momentum=1\n") +
                             "schedule=pushed\nnesterov=" + (nesterov ? "1" : "0");
    Store store = store_of(rule, kDense);
    EXPECT_TRUE(store.needs_rate(0));
    const std::vector<float> gradient(kElements, 2);
    float moment = 0, value = 0;
    for (const float rate : {0.5F, 0.25F, 2.F}) {
      store.update(0, store.begin_update(0, rate), 0, bytes_of(gradient), rate);
      moment = moment * 0.5F + 2;
      value -= nesterov ? 2 * rate + moment * 0.5F * rate : moment * rate;
    }
    EXPECT_EQ(values_of(store), std::vector<float>(kElements, value));
  }
}

TEST(Store, takes_an_optimizer_for_each_declaration_and_one_list_of_variables) {
  const std::string rule = "optimizer=sgd\ninitial_learning_rate=0.5\n";
  Store store = store_of(rule, kDense);
  EXPECT_FALSE(store.needs_rate(0));
  EXPECT_TRUE(store.declare(rule, 0, {&kDense, 1}).ok());
  const Status other = store.declare("optimizer=sgd\n", 0, {&kDense, 1});
  EXPECT_EQ(other.code(), Code::mismatch);
  EXPECT_EQ(other.message(),
            "workers have different optimizers for variable w: the servers use "
            "initial_learning_rate=0.5, and this worker has nothing of that. Give all workers the "
            "same one.");
  StoredSpec elsewhere = kDense;
  elsewhere.shares = 1;
  const Status moved = store.declare(rule, 0, {&elsewhere, 1});
  EXPECT_EQ(moved.code(), Code::mismatch);
  EXPECT_THAT(moved.message(), testing::HasSubstr("other parts of variable w (float32, "));
  const Status rows = store.declare(rule, 0, {&kByRows, 1});
  EXPECT_EQ(rows.code(), Code::mismatch);
  EXPECT_THAT(
      rows.message(),
      testing::HasSubstr("the servers know w (float32, shape (9, 5), 45 elements here), and "
                         "this worker has w (float32, shape (9, 5), 45 elements here, by "
                         "rows) in its place"));
  EXPECT_THAT(store.declare("", 1, {&kByRows, 1}).message(),
              testing::HasSubstr("comes without an optimizer"));
  ASSERT_TRUE(store.declare("optimizer=adam\n", 1, {&kByRows, 1}).ok());
  EXPECT_EQ(store.slots(0), 0U);
  EXPECT_EQ(store.slots(1), 2U);
}

TEST(Store, says_what_it_has_no_memory_for) {
  constexpr uint64_t kWithSlots = 3 * kElements * sizeof(float);
  const std::string rule = "optimizer=adam\n";
  Store store(2 * kWithSlots - 1);
  EXPECT_TRUE(store.declare(rule, 0, {&kDense, 1}).ok());
  EXPECT_EQ(
      store.declare(rule, 1, {&kDense, 1}).message(),
      "this server has no memory for variable w: 540 B beside 540 B that it stores, of 1079 B "
      "that it may use. Use more servers, or a machine or container with more memory.");
  const StoredSpec huge{"huge", Dtype::float64, true, kVariableElementsMax, 0};
  EXPECT_FALSE(store.declare(rule, 1, {&huge, 1}).ok());
  EXPECT_EQ(store.variables(), 1U);
  EXPECT_EQ(store.bytes(), kWithSlots);
  EXPECT_EQ(store_of(rule, kByRows).bytes(), kWithSlots + kRows * sizeof(uint64_t));
}

}  // namespace
}  // namespace rdmacoll::ps
