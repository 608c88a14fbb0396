// What a server owns, and how it changes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "ps/sharding.h"
#include "ps/store.h"

namespace rdmacoll::ps {
namespace {

constexpr uint64_t kRows = 9, kColumns = 5, kElements = kRows * kColumns;

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
  store.begin_read(0);
  store.read(0, 0, std::as_writable_bytes(std::span(values)));
  return values;
}

const StoredSpec kDense{"w", Dtype::float32, true, kElements, 0};
const StoredSpec kByRows{"w", Dtype::float32, true, kElements, kColumns};

TEST(Store, updates_in_portions_as_in_one) {
  const std::string rule = "optimizer=adam\ninitial_learning_rate=0.1\n";
  Store whole = store_of(rule, kDense), portions = store_of(rule, kDense);
  std::mt19937 random(3);
  for (int i = 0; i < 5; ++i) {
    std::vector<float> gradient(kElements);
    for (float& one : gradient) one = std::normal_distribution<float>()(random);
    whole.update(0, whole.begin_update(0, false), 0, bytes_of(gradient));
    const uint64_t step = portions.begin_update(0, false);
    const std::size_t cut = 1 + random() % (kElements - 1);
    portions.update(0, step, cut, bytes_of(gradient).subspan(cut * 4));
    portions.update(0, step, 0, bytes_of(gradient).first(cut * 4));
  }
  EXPECT_EQ(values_of(whole), values_of(portions));
  EXPECT_EQ(whole.updates(0), 5U);
}

// A push of some rows changes all rows as a gradient does that is zero in the others: as in Keras.
class StoreRows : public testing::TestWithParam<const char*> {};

TEST_P(StoreRows, change_as_with_zeros_for_the_others) {
  const std::string rule = std::string("initial_learning_rate=0.1\n") + GetParam();
  Store dense = store_of(rule, kDense), sparse = store_of(rule, kByRows);
  std::mt19937 random(5);
  std::vector<float> start(kElements);
  for (float& one : start) one = std::normal_distribution<float>()(random);
  dense.write(0, 0, bytes_of(start));
  sparse.write(0, 0, bytes_of(start));
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
    dense.update(0, dense.begin_update(0, false), 0, bytes_of(gradient));
    if (i % 11 == 10) {  // both ways to push one variable
      sparse.update(0, sparse.begin_update(0, false), 0, bytes_of(gradient));
    } else {
      sparse.update_rows(0, sparse.begin_update(0, true), rows,
                         reinterpret_cast<const std::byte*>(named.data()));
    }
    if (i % 7 == 0) {
      const std::vector<int64_t> asked = {8, 0, 3};
      std::vector<float> read(asked.size() * kColumns);
      sparse.read_rows(0, asked, reinterpret_cast<std::byte*>(read.data()));
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
  store.write(0, 0, bytes_of(std::vector<float>(kElements, 1)));
  const std::vector<float> gradient(kColumns, 1);
  const std::vector<int64_t> row = {4};
  store.update_rows(0, store.begin_update(0, true), row,
                    reinterpret_cast<const std::byte*>(gradient.data()));
  const std::vector<float> values = values_of(store);
  for (std::size_t i = 0; i < kElements; ++i) {
    EXPECT_EQ(values[i] != 1, i / kColumns == 4) << i;
  }
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
  EXPECT_THAT(rows.message(),
              testing::HasSubstr("the servers know w (float32, 45 elements here), and this worker "
                                 "has w (float32, 45 elements here, by rows) in its place"));
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
  EXPECT_GT(Store::physical_memory_bytes(), uint64_t{1} << 26);
}

}  // namespace
}  // namespace rdmacoll::ps
