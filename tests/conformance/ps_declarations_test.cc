// Variables that workers declare at different times, or not alike.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>

#include "base/text.h"
#include "conformance/ps_fleet.h"

namespace rdmacoll::conformance {
namespace {

class ParameterServerDeclarations : public PsFleet {};

TEST_P(ParameterServerDeclarations, lets_nobody_wait_for_values_that_others_want) {
  open(3, 2);
  begin({floats("w", {3000})}, {counted(3000, 0)});  // on both servers
  const VariableSpec extra = floats("extra", {1});   // on one server
  const bool decays = true;
  CallRef call;
  ASSERT_TRUE(clients[1]->declare({&extra, 1}, {&decays, 1}, kSgd, call).ok());
  run(call);
  float value = 0, given = 5;
  const auto number = uint32_t{1};
  const Tensor wanted{number, reinterpret_cast<std::byte*>(&value)};
  const CallRef waits = clients[1]->pull({&wanted, 1});
  std::vector<std::vector<float>> values = {counted(3000, 0)};
  run(clients[2]->push_pull(tensors(values)));
  EXPECT_FALSE(waits->is_done());
  const auto said = [&](const std::string& text) {
    return std::count_if(servers.begin(), servers.end(), [&](const auto& server) {
      return server->stats_json().find(cat("\"waiting_for\": \"", text, "\"")) != std::string::npos;
    });
  };
  EXPECT_EQ(said("values extra"), 1);
  EXPECT_EQ(said(""), 1);
  EXPECT_THAT(wait(clients[2]->save("/nowhere/at/all")).message(),
              testing::AnyOf(testing::HasSubstr("variable extra has no values yet: save once"),
                             testing::HasSubstr("cannot be written")));  // the other server's error
  ASSERT_TRUE(clients[0]->declare({&extra, 1}, {&decays, 1}, kSgd, call).ok());
  run(call);
  const Tensor first{number, reinterpret_cast<std::byte*>(&given)};
  run(clients[0]->init({&first, 1}));
  run(waits);
  EXPECT_EQ(value, 5);
  EXPECT_EQ(said(""), 2);
}

// With both cuts, each server gets the same numbers of elements in the same order, but other
// elements.
TEST_P(ParameterServerDeclarations, refuses_what_was_declared_in_other_portions) {
  chunk_bytes = std::size_t{1} << 20;
  open(2, 2);
  const VariableSpec words = floats("words", {100, 25}, true);
  const std::vector<VariableSpec> both = {floats("a", {13107}), floats("b", {12582})};
  std::vector<VariableSpec> all = {words};
  all.insert(all.end(), both.begin(), both.end());
  const std::array<bool, 3> decays = {true, true, true};
  CallRef call;
  ASSERT_TRUE(clients[0]->declare(all, decays, kSgd, call).ok());
  run(call);
  ASSERT_TRUE(clients[1]->declare({&words, 1}, {decays.data(), 1}, kSgd, call).ok());
  EXPECT_EQ(wait(call).code(), Code::mismatch);
  EXPECT_THAT(call->status.message(), testing::HasSubstr("other parts of variable words"));
}

TEST_P(ParameterServerDeclarations, whose_first_worker_dies_too_early_says_so_to_the_others) {
  open(2, 1);
  const VariableSpec w = floats("w", {3});
  const bool decays = true;
  CallRef call;
  ASSERT_TRUE(clients[1]->declare({&w, 1}, {&decays, 1}, kSgd, call).ok());
  run(call);
  std::vector<std::vector<float>> values = {{1, 2, 3}};
  const CallRef waits = clients[1]->pull(tensors(values));
  for (int i = 0; i < 50; ++i) turn();
  EXPECT_FALSE(waits->is_done());
  clients[0].reset();
  fleet->transports[0].reset();
  EXPECT_THAT(wait(waits).message(),
              testing::HasSubstr("rank 0 has left before it gave variable w"));
  clients[1].reset();
  fleet->transports[1].reset();
  EXPECT_TRUE(run_until([&] { return servers[0]->is_done(); }));
  const std::vector<std::string> losses = servers[0]->take_losses();
  ASSERT_EQ(losses.size(), 2U);
  EXPECT_THAT(losses[0], testing::HasSubstr("goes on with 1 worker."));
  EXPECT_THAT(losses[1], testing::HasSubstr("It was the last worker, so the server ends."));
}

INSTANTIATE_TEST_SUITE_P(All, ParameterServerDeclarations, testing::ValuesIn(backends()),
                         test_name);

}  // namespace
}  // namespace rdmacoll::conformance
