// Variables whose rows travel one by one, over every transport.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <numeric>
#include <optional>

#include "conformance/ps_fleet.h"

namespace rdmacoll::conformance {
namespace {

class ParameterServerRows : public PsFleet {};

TEST_P(ParameterServerRows, moves_only_the_rows_that_are_named) {
  open(2, 3);
  constexpr std::size_t kRows = 400, kColumns = 6;
  begin({floats("words", {kRows, kColumns}, true)}, {counted(kRows * kColumns, 0)});
  // Row 5 occurs twice, so its gradients are summed.
  const std::vector<int64_t> rows = {399, 5, 0, 5, 200};
  std::vector<float> gradients(rows.size() * kColumns, -1);
  CallRef call;
  ASSERT_TRUE(clients[0]
                  ->push_rows(0, rows, reinterpret_cast<const std::byte*>(gradients.data()), call)
                  .ok());
  run(call);
  std::vector<float> pulled(rows.size() * kColumns);
  ASSERT_TRUE(
      clients[1]->pull_rows(0, rows, reinterpret_cast<std::byte*>(pulled.data()), call).ok());
  run(call);
  for (std::size_t i = 0; i < pulled.size(); ++i) {
    const int64_t row = rows[i / kColumns];
    const auto was = static_cast<float>(static_cast<std::size_t>(row) * kColumns + i % kColumns);
    EXPECT_EQ(pulled[i], was + (row == 5 ? 2 : 1)) << i;
  }
  std::vector<std::vector<float>> all = {std::vector<float>(kRows * kColumns)};
  run(clients[0]->pull(tensors(all)));
  EXPECT_EQ(all[0][6 * kColumns], 6.F * kColumns);
  EXPECT_EQ(all[0][200 * kColumns], 200.F * kColumns + 1);
  EXPECT_EQ(clients[0]->push_rows(0, std::vector<int64_t>{400}, nullptr, call).message(),
            "row 400 of variable words: it has rows 0 to 399.");
}

TEST_P(ParameterServerRows, say_where_the_push_of_an_exchange_was_refused) {
  open(1, 2);
  begin({floats("words", {10, 2}, true)}, {counted(20, 0)});
  const std::vector<int64_t> rows = {9, 0};
  std::vector<float> gradients(4, 1), values(4, -1);
  const Tensor tensor{0, reinterpret_cast<std::byte*>(values.data()),
                      reinterpret_cast<const std::byte*>(gradients.data())};
  CallRef call;
  ASSERT_TRUE(clients[0]->exchange_rows(tensor, rows, call, INFINITY).ok());
  EXPECT_THAT(wait(call).message(),
              testing::HasSubstr("learning rate of a push of variable words"));
  ASSERT_TRUE(clients[0]->exchange_rows(tensor, rows, call).ok());
  run(call);
  EXPECT_EQ(values, (std::vector<float>{17, 18, -1, 0}));
}

// Rows that no push names change like a whole variable whose gradients are zero in these rows.
TEST_P(ParameterServerRows, make_up_for_updates_at_the_rates_that_came_with_them) {
  open(2, 2);
  constexpr std::size_t kRows = 60, kColumns = 7;
  begin({floats("words", {kRows, kColumns}, true), floats("whole", {kRows, kColumns})},
        {counted(kRows * kColumns, 0), counted(kRows * kColumns, 0)},
        "optimizer=adam\ninitial_learning_rate=0.5\n");
  const std::array<std::optional<double>, 7> rates = {{{}, 0.25, 0.25, 2, {}, 0.0, 0.125}};
  std::vector<float> gradients(kRows * kColumns);
  const Tensor whole{1, reinterpret_cast<std::byte*>(gradients.data())};
  for (std::size_t push = 0; push < rates.size(); ++push) {
    const std::vector<int64_t> row = {static_cast<int64_t>(push * 8)};
    const std::vector<float> ones(kColumns, 1);
    std::fill(gradients.begin(), gradients.end(), 0.F);
    std::fill_n(gradients.begin() + row[0] * static_cast<int64_t>(kColumns), kColumns, 1.F);
    CallRef call;
    ASSERT_TRUE(
        clients[push % 2]
            ->push_rows(0, row, reinterpret_cast<const std::byte*>(ones.data()), call, rates[push])
            .ok());
    run(call);
    run(clients[push % 2]->push({&whole, 1}, rates[push]));
  }
  std::vector<std::vector<float>> both(2, std::vector<float>(kRows * kColumns));
  run(clients[0]->pull(tensors(both)));
  EXPECT_EQ(both[0], both[1]);
}

// The missed updates are more than a server makes at once.
TEST_P(ParameterServerRows, makes_up_for_what_rows_have_missed) {
  open(2, 1);
  constexpr std::size_t kRows = 512, kColumns = 64, kPushes = 101;
  static_assert(kRows * kColumns * (kPushes - 1) > 2 * ps::kElementsAtOnce);
  begin({floats("words", {kRows, kColumns}, true)}, {std::vector<float>(kRows * kColumns, 1)},
        kSgd + "momentum=0.5\n");
  std::vector<int64_t> all(kRows), first = {0};
  std::iota(all.begin(), all.end(), 0);
  const std::vector<float> ones(kRows * kColumns, 1);
  CallRef call;
  for (std::size_t push = 0; push < kPushes; ++push) {
    ASSERT_TRUE(clients[0]
                    ->push_rows(0, push == 0 ? all : first,
                                reinterpret_cast<const std::byte*>(ones.data()), call)
                    .ok());
    run(call);
  }
  float velocity = 1, expected = 1 - velocity;
  for (std::size_t missed = 1; missed < kPushes; ++missed) expected -= velocity *= 0.5F;
  // One call pulls rows by their numbers, another pulls the whole variable. While one call makes up
  // for missed updates, the server serves the other.
  std::vector<float> some(2 * kColumns);
  std::vector<std::vector<float>> whole = {std::vector<float>(kRows * kColumns)};
  const CallRef pull = clients[1]->pull(tensors(whole));
  const CallRef stats = clients[0]->stats();
  ASSERT_TRUE(clients[0]
                  ->pull_rows(0, std::vector<int64_t>{kRows - 1, 7},
                              reinterpret_cast<std::byte*>(some.data()), call)
                  .ok());
  for (const CallRef& one : {pull, stats, call}) run(one);
  EXPECT_EQ(some, std::vector<float>(2 * kColumns, expected));
  // Row 0 has missed no update, and has had each update once.
  float moment = 0, often_pushed = 1;
  for (std::size_t push = 0; push < kPushes; ++push) {
    moment = moment * 0.5F - 1;
    often_pushed += moment;
  }
  EXPECT_NEAR(whole[0][0], often_pushed, 1e-3);
  whole[0].erase(whole[0].begin(), whole[0].begin() + kColumns);
  EXPECT_EQ(whole[0], std::vector<float>((kRows - 1) * kColumns, expected));
}

INSTANTIATE_TEST_SUITE_P(All, ParameterServerRows, testing::ValuesIn(backends()), test_name);

}  // namespace
}  // namespace rdmacoll::conformance
