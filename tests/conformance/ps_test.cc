// Workers and servers of an asynchronous parameter server, over every transport.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <numeric>

#include "conformance/ps_fleet.h"
#include "own_path.h"

namespace rdmacoll::conformance {
namespace {

class ParameterServer : public PsFleet {};

const std::vector<VariableSpec> kSpecs = {floats("large", {50, 101}), floats("scalar", {}),
                                          floats("none", {0, 3}), floats("small", {17})};
std::vector<std::vector<float>> values_of_specs(float from) {
  return {counted(5050, from), {from}, {}, counted(17, from)};
}

TEST_P(ParameterServer, gives_all_workers_what_the_first_has) {
  open(3, 2);
  begin(kSpecs, values_of_specs(7));
  for (auto& client : clients) {
    auto pulled = values_of_specs(0);
    run(client->pull(tensors(pulled)));
    EXPECT_EQ(pulled, values_of_specs(7));
  }
}

TEST_P(ParameterServer, applies_every_push_of_every_worker_once) {
  open(3, 2);
  begin(kSpecs, values_of_specs(0));
  constexpr int kSteps = 20;
  std::vector<std::vector<std::vector<float>>> gradients;
  for (int worker = 0; worker < 3; ++worker) {
    gradients.push_back(values_of_specs(0));
    for (auto& one : gradients.back()) std::fill(one.begin(), one.end(), -1 - worker);
  }
  // Each worker has several pushes in flight.
  std::vector<CallRef> calls;
  for (int step = 0; step < kSteps; ++step) {
    for (std::size_t worker = 0; worker < 3; ++worker) {
      calls.push_back(clients[worker]->push(tensors(gradients[worker])));
    }
  }
  for (const CallRef& call : calls) run(call);
  auto pulled = values_of_specs(0);
  run(clients[1]->pull(tensors(pulled)));
  EXPECT_EQ(pulled, values_of_specs(kSteps * (1 + 2 + 3)));
}

TEST_P(ParameterServer, gives_fresh_values_back_for_gradients) {
  open(2, 2);
  begin(kSpecs, values_of_specs(0));
  for (int step = 1; step <= 5; ++step) {
    auto moved = values_of_specs(0);
    for (auto& one : moved) std::fill(one.begin(), one.end(), -2.F);
    run(clients[static_cast<std::size_t>(step % 2)]->push_pull(tensors(moved)));
    EXPECT_EQ(moved, values_of_specs(2.F * static_cast<float>(step)));
  }
}

// The steps of each of four workers while the first one takes kSteps, and the number of rounds.
struct Progress {
  std::array<int, 4> steps = {};
  int rounds = 0;
};

TEST_P(ParameterServer, lets_the_fast_run_while_one_is_slow) {
  open(4, 2);
  begin(kSpecs, values_of_specs(0));
  std::vector<std::vector<std::vector<float>>> memory(4, values_of_specs(0));
  std::vector<CallRef> calls(4);
  constexpr int kSteps = 500;
  // The last worker moves only in every `pace`th round.
  const auto take_steps = [&](int pace) {
    Progress made;
    for (; made.steps[0] < kSteps && made.rounds < 1'000'000; ++made.rounds) {
      for (std::size_t i = 0; i < 4; ++i) {
        if (i == 3 && made.rounds % pace != 0) continue;
        if (calls[i] && calls[i]->is_done()) {
          EXPECT_TRUE(calls[i]->status.ok());
          ++made.steps[i];
          calls[i].reset();
        }
        if (!calls[i]) calls[i] = clients[i]->push_pull(tensors(memory[i]));
        clients[i]->turn();
      }
      fleet->step();
      for (auto& server : servers) server->turn();
    }
    return made;
  };
  take_steps(1);  // memory is registered once
  const Progress all = take_steps(1);
  const Progress others = take_steps(10);
  ASSERT_EQ(all.steps[0], kSteps);
  ASSERT_EQ(others.steps[0], kSteps);
  EXPECT_LT(others.steps[3], all.steps[3] / 2);
  if (GetParam().name == "rdma") {
    // A device works independently of these rounds, and serves queue pairs in its own order. If
    // these two workers waited for the slow one, they would take a tenth of the steps.
    const int kept = others.steps[1] + others.steps[2];
    EXPECT_GE(kept * 2, std::min(all.steps[1] + all.steps[2], 2 * kSteps));
    return;
  }
  EXPECT_LE(others.rounds * 90, all.rounds * 100);
  for (std::size_t i = 1; i < 3; ++i) {
    EXPECT_GE(others.steps[i] * 100, all.steps[i] * 90) << "worker " << i;
  }
}

TEST_P(ParameterServer, holds_the_fast_back_where_staleness_is_bounded) {
  open(2, 2, 3);
  begin(kSpecs, values_of_specs(0));
  auto gradient = values_of_specs(0);
  std::vector<CallRef> calls;
  for (int step = 0; step < 8; ++step) calls.push_back(clients[0]->push(tensors(gradient)));
  run(calls[3]);
  for (int i = 0; i < 200; ++i) turn();
  EXPECT_FALSE(calls[4]->is_done());
  EXPECT_THAT(servers[0]->stats_json(), testing::HasSubstr("\"waiting\": 1"));
  run(clients[1]->push(tensors(gradient)));
  run(calls[4]);
  for (int i = 0; i < 200; ++i) turn();
  EXPECT_FALSE(calls[5]->is_done());
  // A worker that has left holds no other worker back.
  run(clients[1]->leave());
  for (const CallRef& call : calls) run(call);
}

TEST_P(ParameterServer, goes_on_without_a_worker_that_dies) {
  open(3, 1, 0);
  begin(kSpecs, values_of_specs(0));
  auto gradient = values_of_specs(0), dying = values_of_specs(0);
  const CallRef lost = clients[2]->push_pull(tensors(dying));
  clients[2]->turn();
  clients[2].reset();
  fleet->transports[2].reset();
  for (int step = 0; step < 3; ++step) {
    const CallRef one = clients[0]->push(tensors(gradient));
    const CallRef other = clients[1]->push(tensors(gradient));
    run(one);
    run(other);
  }
  const std::vector<std::string> losses = servers[0]->take_losses();
  ASSERT_EQ(losses.size(), 1U);
  EXPECT_THAT(losses[0], testing::AllOf(testing::HasSubstr("rank 2 (here"),
                                        testing::HasSubstr("goes on with 2 workers.")));
  run(clients[0]->leave());
  EXPECT_FALSE(servers[0]->is_done());
  run(clients[1]->leave());
  EXPECT_TRUE(run_until([&] { return servers[0]->is_done(); }));
}

TEST_P(ParameterServer, that_leaves_by_an_error_says_why_to_its_workers) {
  open(2, 2);
  begin(kSpecs, values_of_specs(0));
  servers[1]->leave("ValueError: nan");
  auto memory = values_of_specs(0);
  for (auto& client : clients) {
    ASSERT_TRUE(run_until([&] { return !client->failure().ok(); }));
    const CallRef pushed = client->push_pull(tensors(memory));
    EXPECT_EQ(pushed->status.code(), Code::rank_failed);
    EXPECT_EQ(pushed->status.detail().rank, JobRank(3));
    EXPECT_EQ(pushed->status.detail().cause, "left the job: ValueError: nan");
    EXPECT_THAT(pushed->status.message(),
                testing::AllOf(testing::HasSubstr("has left the job (ValueError: nan)"),
                               testing::HasSubstr("the variables that it stored are lost")));
  }
  EXPECT_TRUE(servers[1]->has_informed_workers());
}

// A server ends because it has heard of the end of another server. For all workers, the cause is
// that other server.
TEST_P(ParameterServer, that_leaves_for_anothers_sake_names_that_one) {
  open(2, 2);
  begin(kSpecs, values_of_specs(0));
  const std::string said = "server 0 (rank 2, there, pid 7) has left the job (ValueError: nan).";
  servers[1]->leave("RankFailedError: " + said);
  auto memory = values_of_specs(0);
  for (auto& client : clients) {
    ASSERT_TRUE(run_until([&] { return !client->failure().ok(); }));
    const CallRef pushed = client->push_pull(tensors(memory));
    EXPECT_EQ(pushed->status.detail().rank, JobRank(2));
    EXPECT_EQ(pushed->status.message(), said);
  }
}

TEST_P(ParameterServer, that_dies_is_named_by_the_workers) {
  open(2, 2);
  begin(kSpecs, values_of_specs(0));
  auto memory = values_of_specs(0);
  const CallRef pushed = clients[0]->push_pull(tensors(memory));
  servers[1].reset();
  fleet->transports[3].reset();
  const Status failed = wait(pushed);
  EXPECT_EQ(failed.code(), Code::rank_failed) << failed.message();
  EXPECT_EQ(failed.detail().rank, JobRank(3));
  EXPECT_THAT(failed.message(), testing::HasSubstr("the variables that it stored are lost"));
  const CallRef later = clients[0]->pull(tensors(memory));
  EXPECT_TRUE(later->is_done());
  EXPECT_EQ(later->status.code(), Code::rank_failed);
}

// A rank that has lost the server tells the others, even if a worker was lost before.
TEST_P(ParameterServer, that_dies_ends_the_others_with_its_name) {
  open(3, 3);
  begin(kSpecs, values_of_specs(0));
  clients[2].reset();
  fleet->transports[2].reset();
  auto memory = values_of_specs(0), more = values_of_specs(0);
  for (const auto& server : servers) {
    ASSERT_TRUE(run_until([&] { return server->stats_json().ends_with("\"lost\": 1}"); }));
  }
  run(clients[0]->push_pull(tensors(memory)));
  const std::vector<CallRef> calls = {clients[0]->push_pull(tensors(memory)),
                                      clients[1]->push_pull(tensors(more))};
  servers[1].reset();
  fleet->transports[4].reset();
  for (const CallRef& call : calls) EXPECT_EQ(wait(call).detail().rank, JobRank(4));
  for (const std::size_t left : {0, 2}) {
    ASSERT_TRUE(run_until([&] { return !servers[left]->failure().ok(); }));
    const Status& failure = servers[left]->failure();
    EXPECT_EQ(failure.code(), Code::rank_failed);
    EXPECT_EQ(failure.detail().rank, JobRank(4));
    EXPECT_THAT(failure.message(), testing::StartsWith("server 1 (rank 4, here, pid"));
    const std::vector<std::string> losses = servers[left]->take_losses();
    ASSERT_GE(losses.size(), 1U);
    EXPECT_THAT(losses[0], testing::HasSubstr("rank 2 (here"));
    for (std::size_t i = 1; i < losses.size(); ++i) {
      EXPECT_THAT(losses[i], testing::Not(testing::HasSubstr("rank 4")))
          << "no worker's loss is its";
    }
  }
}

// A worker that was stopped blames no server. The servers go on without this worker.
TEST_P(ParameterServer, goes_on_without_a_worker_that_was_stopped) {
  open(2, 2);
  begin(kSpecs, values_of_specs(0));
  auto memory = values_of_specs(0);
  clients[1]->was_suspended(worlds[1].was_suspended(9 * kSecond, kSecond));
  fleet->transports[2]->fail(1);
  const CallRef call = clients[1]->push_pull(tensors(memory));
  EXPECT_EQ(wait(call).detail().rank, JobRank(1));
  EXPECT_FALSE(clients[1]->is_sending_reason());
  for (int i = 0; i < 50; ++i) turn();
  for (const auto& server : servers) EXPECT_TRUE(server->failure().ok());
  run(clients[0]->push_pull(tensors(memory)));
}

TEST_P(ParameterServer, refuses_what_does_not_fit_and_goes_on) {
  chunk_bytes = std::size_t{1} << 30;  // a huge variable then has few shares
  open(3, 1);
  const VariableSpec w = floats("w", {3}), v = floats("v", {3});
  const bool decays = true;
  CallRef call;
  ASSERT_TRUE(clients[2]->declare({&v, 1}, {&decays, 1}, "", call).ok());
  EXPECT_EQ(wait(call).message(), "variable v comes without an optimizer: name one.");
  // The server also forgets the variables before the refused one, and the optimizer.
  const std::vector<VariableSpec> large = {floats("v", {2}), floats("x", {1 << 13, 1 << 27}, true)};
  const std::array<bool, 2> both = {true, true};
  ASSERT_TRUE(clients[0]->declare(large, both, "optimizer=adam\n", call).ok());
  EXPECT_THAT(wait(call).message(), testing::HasSubstr("no memory for variable x"));
  ASSERT_TRUE(clients[0]->declare({&w, 1}, {&decays, 1}, kSgd, call).ok());
  run(call);
  std::vector<std::vector<float>> values = {{1, 2, 3}};
  EXPECT_EQ(wait(clients[0]->push(tensors(values))).message(),
            "variable w has no values yet, and this worker has to send them: declare it first.");
  run(clients[0]->init(tensors(values)));
  EXPECT_EQ(wait(clients[0]->init(tensors(values))).message(),
            "variable w has its initial values already: push gradients to change it.");
  // The refused calls sent unwanted data. Both sides still count sequences alike.
  values = {{1, 1, 1}};
  run(clients[0]->push_pull(tensors(values)));
  EXPECT_EQ(values[0], (std::vector<float>{0, 1, 2}));

  ASSERT_TRUE(clients[1]->declare({&v, 1}, {&decays, 1}, kSgd, call).ok());
  EXPECT_EQ(wait(call).code(), Code::mismatch);
  EXPECT_THAT(call->status.message(), testing::HasSubstr("the servers know w"));
  EXPECT_EQ(clients[1]->variables(), 0U);
  ASSERT_TRUE(clients[1]->declare({&w, 1}, {&decays, 1}, kSgd, call).ok());
  run(call);
  run(clients[1]->pull(tensors(values)));
  EXPECT_EQ(values[0], (std::vector<float>{0, 1, 2}));
  ASSERT_TRUE(clients[2]->declare({&w, 1}, {&decays, 1}, "optimizer=adam\n", call).ok());
  EXPECT_THAT(wait(call).message(), testing::HasSubstr("different optimizers"));
  // Each declaration may have its own rule. With this rule, each push has to bring a learning rate.
  ASSERT_TRUE(clients[0]->declare({&v, 1}, {&decays, 1}, "schedule=pushed\n", call).ok());
  run(call);
  std::array<float, 3> moved = {1, 2, 3};
  const Tensor of_v{1, reinterpret_cast<std::byte*>(moved.data())};
  run(clients[0]->init({&of_v, 1}));
  EXPECT_THAT(wait(clients[0]->push({&of_v, 1})).message(),
              testing::HasSubstr("variable v goes by the learning rate that comes with each push"));
  run(clients[0]->push_pull({&of_v, 1}, 0.5));
  EXPECT_EQ(moved, (std::array<float, 3>{0.5, 1, 1.5}));
  EXPECT_THAT(clients[1]->declare({&w, 1}, {&decays, 1}, "optimizer=lion\n", call).message(),
              testing::HasSubstr("no optimizer lion"));
}

TEST_P(ParameterServer, hangs_up_on_nonsense) {
  open(2, 1);
  begin(kSpecs, values_of_specs(0));
  const std::vector<std::byte> nonsense(9, std::byte{0xab});
  fleet->offer([&] { return fleet->transports[1]->post_control(2, nonsense); });
  ASSERT_TRUE(run_until([&] {
    return !clients[1] || servers[0]->stats_json().find("\"lost\": 1") != std::string::npos;
  }));
  EXPECT_THAT(servers[0]->take_losses().at(0), testing::HasSubstr("it sent an invalid request"));
  auto values = values_of_specs(0);
  run(clients[0]->pull(tensors(values)));
}

TEST_P(ParameterServer, comes_back_from_what_it_saved) {
  const std::string path = own_path("ps_" + std::string(GetParam().name));
  open(2, 2);
  begin(kSpecs, values_of_specs(0), "optimizer=adam\ninitial_learning_rate=1\n");
  auto gradient = values_of_specs(1), then = values_of_specs(0), again = values_of_specs(0);
  run(clients[0]->push(tensors(gradient)));
  run(clients[1]->save(path));
  run(clients[0]->push(tensors(gradient)));
  run(clients[0]->pull(tensors(then)));
  run(clients[0]->restore(path));
  run(clients[0]->push(tensors(gradient)));
  run(clients[0]->pull(tensors(again)));
  EXPECT_EQ(then, again);
  EXPECT_THAT(wait(clients[0]->restore(path + "_not_there")).message(),
              testing::HasSubstr("_not_there.server-"));
  run(clients[0]->pull(tensors(again)));
  EXPECT_EQ(then, again);
  for (int i = 0; i < 2; ++i) std::remove(ps::checkpoint_path(path, i, 2).c_str());
}

TEST_P(ParameterServer, counts_what_it_does) {
  open(1, 1);
  begin({floats("w", {1000})}, {counted(1000, 0)});
  std::vector<std::vector<float>> gradient = {std::vector<float>(1000)};
  for (int i = 0; i < 3; ++i) run(clients[0]->push(tensors(gradient)));
  run(clients[0]->pull(tensors(gradient)));
  const CallRef stats = clients[0]->stats();
  run(stats);
  EXPECT_EQ(stats->texts.at(0),
            "{\"updates\": 3, \"bytes_received\": 16000, \"bytes_sent\": 4000, \"stored_bytes\": "
            "4000, \"variables\": 1, \"workers\": 1, \"waiting\": 0, \"waiting_for\": \"\", "
            "\"lost\": 0}");
}

INSTANTIATE_TEST_SUITE_P(All, ParameterServer, testing::ValuesIn(backends()), test_name);

}  // namespace
}  // namespace rdmacoll::conformance
