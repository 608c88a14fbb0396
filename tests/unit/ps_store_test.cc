// What a server owns, and how it changes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <random>

#include "ps/sharding.h"
#include "ps/store.h"

namespace rdmacoll::ps {
namespace {

constexpr uint64_t kRows = 9, kColumns = 5, kElements = kRows * kColumns;
constexpr uint64_t kPlenty = 1u << 20;

template <typename T>
std::span<const std::byte> bytes_of(const std::vector<T>& values) {
  return std::as_bytes(std::span(values));
}

Store store_of(const std::string& rule, const StoredSpec& spec) {
  Store store;
  EXPECT_TRUE(store.set_rule(rule).ok());
  EXPECT_TRUE(store.declare(0, spec).ok());
  return store;
}

std::vector<float> values_of(Store& store) {
  std::vector<float> values(kElements);
  uint64_t row = 0, left = kPlenty;
  EXPECT_TRUE(store.catch_up(0, store.updates(0), row, left));
  const auto stored = store.stored(0, 0, 0, kElements * sizeof(float));
  std::memcpy(values.data(), stored.data(), stored.size());
  return values;
}

const StoredSpec kDense{"w", Dtype::float32, true, kElements, 0, {9, 5}};
const StoredSpec kByRows{"w", Dtype::float32, true, kElements, kColumns, {9, 5}};

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

// Of so few elements that hardly a row is done in one.
void in_slices(const std::function<bool(uint64_t&)>& step) {
  for (int slices = 0;; ++slices) {
    ASSERT_LT(slices, 1000);
    uint64_t left = 1;
    if (step(left)) return;
  }
}

// A push of some rows changes all rows as a gradient does that is zero in the others: as in Keras.
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

// However many updates rows have missed, no call makes more of them than it may.
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
  constexpr uint64_t kMissed = 1000, kSlice = 20 * kColumns;
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

TEST(Store, takes_one_optimizer_and_one_list_of_variables) {
  Store store = store_of("optimizer=sgd\ninitial_learning_rate=0.5\n", kDense);
  EXPECT_TRUE(store.set_rule("optimizer=sgd\ninitial_learning_rate=0.5\n").ok());
  const Status other = store.set_rule("optimizer=sgd\ninitial_learning_rate=0.25\n");
  EXPECT_EQ(other.code(), Code::mismatch);
  EXPECT_THAT(other.message(), testing::HasSubstr("initial_learning_rate=0.25"));
  EXPECT_TRUE(store.declare(0, kDense).ok());
  const Status rows = store.declare(0, kByRows);
  EXPECT_EQ(rows.code(), Code::mismatch);
  EXPECT_THAT(
      rows.message(),
      testing::HasSubstr("the servers know w (float32, shape (9, 5), 45 elements here), and "
                         "this worker has w (float32, shape (9, 5), 45 elements here, by "
                         "rows) in its place"));
}

TEST(Store, says_what_it_has_no_memory_for) {
  constexpr uint64_t kWithSlots = 3 * kElements * sizeof(float);
  Store store(2 * kWithSlots - 1);
  ASSERT_TRUE(store.set_rule("optimizer=adam\n").ok());
  EXPECT_TRUE(store.declare(0, kDense).ok());
  EXPECT_EQ(store.declare(1, kDense).message(),
            "this server has no memory for variable w: 540 B beside 540 B that it stores. Use more "
            "servers, or a machine with more memory.");
  EXPECT_FALSE(store.declare(1, {"huge", Dtype::float64, true, kVariableElementsMax, 0}).ok());
  EXPECT_EQ(store.variables(), 1U);
  EXPECT_EQ(store.bytes(), kWithSlots);
  EXPECT_EQ(store_of("optimizer=adam\n", kByRows).bytes(), kWithSlots + kRows * sizeof(uint64_t));
  EXPECT_GT(Store::physical_memory_bytes(), uint64_t{1} << 26);
}

}  // namespace
}  // namespace rdmacoll::ps
