// The state of an optimizer that servers take over and give back, and calls without a waiter.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <numeric>
#include <set>

#include "conformance/ps_fleet.h"
#include "own_path.h"

namespace rdmacoll::conformance {
namespace {

using ParameterServerState = PsFleet;

TEST_P(ParameterServerState, takes_over_what_an_optimizer_has_and_gives_it_back) {
  open(2, 2);
  const std::string rule = "optimizer=sgd\ninitial_learning_rate=1\nmomentum=0.5\n";
  const std::vector<VariableSpec> specs = {floats("large", {50, 101}),
                                           floats("rows", {40, 2}, true)};
  std::vector<std::vector<float>> values = {counted(5050, 1), counted(80, 2)};
  std::vector<std::vector<float>> slots = {counted(5050, 3), counted(80, 4)};
  const std::unique_ptr<bool[]> decays(new bool[2]());
  for (auto& client : clients) {
    CallRef declared;
    ASSERT_TRUE(client->declare(specs, {decays.get(), 2}, rule, declared).ok());
    run(declared);
  }
  run(clients[0]->init(tensors(slots), 1));
  EXPECT_EQ(wait(clients[0]->pull(tensors(values))).code(), Code::invalid) << "no values yet";
  run(clients[0]->init(tensors(values), 0, 7));
  std::vector<std::vector<float>> found = {counted(5050, 0), counted(80, 0)};
  run(clients[1]->pull(tensors(found), 1));
  EXPECT_EQ(found, slots);
  const auto updates = [&](std::vector<std::vector<float>>& of) {
    const CallRef call = clients[1]->updates(tensors(of));
    run(call);
    std::set<std::string> said(call->texts.begin(), call->texts.end());
    return said;
  };
  EXPECT_THAT(updates(found), testing::ElementsAre("7"));
  std::vector<std::vector<float>> none = {std::vector<float>(5050), std::vector<float>(80)};
  run(clients[1]->push(tensors(none)));
  EXPECT_THAT(updates(found), testing::ElementsAre("8"));
  // The gradient is zero. The push therefore halves the momentum, which moves the values once more.
  run(clients[1]->pull(tensors(found), 1));
  EXPECT_EQ(found[1][3], slots[1][3] * 0.5F);
  run(clients[1]->pull(tensors(found)));
  EXPECT_EQ(found[1][3], values[1][3] + slots[1][3] * 0.5F);
  EXPECT_EQ(wait(clients[1]->pull(tensors(found), 2)).code(), Code::rank_failed)
      << "a server closes the connection of a client that asks for an unknown slot";
}

TEST_P(ParameterServerState, takes_gradients_in_separate_memory_and_calls_back_without_a_wait) {
  open(1, 2);
  const auto values_from = [](float from) {
    return std::vector<std::vector<float>>{counted(5050, from), counted(17, from)};
  };
  begin({floats("large", {50, 101}), floats("small", {17})}, values_from(10));
  auto gradients = values_from(1);
  auto fresh = values_from(0);
  std::vector<Tensor> asked = tensors(fresh);
  for (std::size_t i = 0; i < asked.size(); ++i) {
    asked[i].gradient = reinterpret_cast<const std::byte*>(gradients[i].data());
  }
  const CallRef call = clients[0]->push_pull(asked);
  int told = 0;
  call->done = [&told](const Status& status) { told += status.ok() ? 1 : 100; };
  run(call);
  for (const CallRef& ended : clients[0]->take_ended()) ended->done(ended->status);
  EXPECT_EQ(told, 1);
  EXPECT_TRUE(clients[0]->take_ended().empty());
  EXPECT_EQ(gradients, values_from(1));
  EXPECT_EQ(fresh[0], std::vector<float>(5050, 9));
  EXPECT_EQ(fresh[1], std::vector<float>(17, 9));
  // All open calls end with the client's failure.
  const CallRef lost = clients[0]->push(tensors(gradients));
  lost->done = [&told](const Status& status) { told += status.code() == Code::shutdown ? 10 : 0; };
  clients[0]->fail({Code::shutdown, "over"});
  EXPECT_EQ(wait(lost).code(), Code::shutdown);
  for (const CallRef& ended : clients[0]->take_ended()) ended->done(ended->status);
  EXPECT_EQ(told, 11);
}

// Calls that began before a restore were meant for the replaced values. The server no longer has
// their learning rates.
TEST_P(ParameterServerState, drops_what_a_restore_has_overtaken) {
  const std::string path = own_path("overtaken_" + std::string(GetParam().name));
  open(3, 1);
  constexpr std::size_t kRows = 3000, kColumns = 4;
  const std::vector<float> start(kRows * kColumns, 1);
  begin({floats("words", {kRows, kColumns}, true), floats("whole", {kRows, kColumns})},
        {start, start}, "optimizer=adam\nschedule=pushed\n");
  std::vector<int64_t> rows(kRows);
  std::iota(rows.begin(), rows.end(), 0);
  std::vector<std::vector<float>> gradients(2, std::vector<float>(kRows * kColumns, 1));
  const std::vector<Tensor> both = tensors(gradients);
  const auto push_rows = [&](std::size_t worker) {
    CallRef call;
    const auto* data = reinterpret_cast<const std::byte*>(gradients[0].data());
    EXPECT_TRUE(clients[worker]->push_rows(0, rows, data, call, 0.1).ok());
    return call;
  };
  run(push_rows(0));
  run(clients[0]->push({&both[1], 1}, 0.1));
  run(clients[0]->save(path));
  std::vector<std::vector<float>> saved(2, start), found = saved;
  run(clients[0]->pull(tensors(saved)));
  for (int before = 0; before < 40; ++before) {
    for (int i = 0; i < 3; ++i) run(push_rows(0));
    const CallRef pushed = push_rows(1);
    std::vector<std::vector<float>> moved(2, start);
    const std::vector<Tensor> whole = tensors(moved);
    const CallRef exchanged = clients[2]->push_pull({&whole[1], 1}, 0.1);
    for (int i = 0; i < before; ++i) turn();
    const CallRef restored = clients[0]->restore(path);
    for (const CallRef& call : {pushed, exchanged, restored}) run(call);
    ASSERT_FALSE(hangs) << before;
  }
  run(clients[0]->restore(path));
  run(clients[0]->pull(tensors(found)));
  EXPECT_EQ(found, saved);
  std::remove(ps::checkpoint_path(path, 0, 1).c_str());
}

TEST_P(ParameterServerState, refuses_a_rate_that_is_no_number) {
  open(1, 1);
  begin({floats("w", {3})}, {{1, 2, 3}});
  std::vector<std::vector<float>> gradient = {{1, 1, 1}};
  EXPECT_EQ(wait(clients[0]->push(tensors(gradient), NAN)).message(),
            "the learning rate of a push of variable w is nan: give a finite number.");
  run(clients[0]->push_pull(tensors(gradient), -1));
  EXPECT_EQ(gradient[0], (std::vector<float>{2, 3, 4}));
}

INSTANTIATE_TEST_SUITE_P(All, ParameterServerState, testing::ValuesIn(backends()), test_name);

}  // namespace
}  // namespace rdmacoll::conformance
