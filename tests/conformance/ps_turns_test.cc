// The turns that a request takes over TCP: each turn writes once to each peer.
#include "conformance/ps_fleet.h"

namespace rdmacoll::conformance {
namespace {

class ParameterServerTurns : public PsFleet {};

TEST_P(ParameterServerTurns, a_small_request_is_answered_with_one_message) {
  open(1, 1);
  begin({floats("few", {5})}, {counted(5, 1)});
  for (int i = 0; i < 10; ++i) turn();
  std::vector<std::vector<float>> moved = {std::vector<float>(5, 1)};
  const CallRef call = clients[0]->push_pull(tensors(moved));
  clients[0]->turn();  // takes the call
  clients[0]->turn();  // writes it
  servers[0]->turn();  // reads it, and makes the answer
  servers[0]->turn();  // writes the answer
  EXPECT_FALSE(call->is_done());
  clients[0]->turn();
  EXPECT_TRUE(call->is_done());
  EXPECT_EQ(moved[0], counted(5, 0));
}

// The data is larger than what goes ahead of its grant without an announcement. Each side does all
// that it can before the other one does anything.
TEST_P(ParameterServerTurns, a_large_request_and_its_answer_wait_for_no_grants) {
  constexpr std::size_t kElements = 100 * 1024 / sizeof(float);
  chunk_bytes = kElements * sizeof(float);
  open(1, 1);
  begin({floats("many", {kElements})}, {counted(kElements, 1)});
  for (int i = 0; i < 10; ++i) turn();
  const auto turn_until = [](auto& one, const std::function<bool()>& done) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (!done() && std::chrono::steady_clock::now() < deadline) one.turn();
    return done();
  };
  Transport &worker = *fleet->transports[0], &server = *fleet->transports[1];
  const uint64_t copied = worker.counters().bytes_copied + server.counters().bytes_copied;
  const uint64_t there = worker.counters().bytes_sent + chunk_bytes;
  const uint64_t back = server.counters().bytes_sent + chunk_bytes;
  std::vector<std::vector<float>> moved = {std::vector<float>(kElements, 1)};
  const CallRef call = clients[0]->push_pull(tensors(moved));
  ASSERT_TRUE(turn_until(*clients[0], [&] { return worker.counters().bytes_sent == there; }));
  ASSERT_TRUE(turn_until(*servers[0], [&] { return server.counters().bytes_sent == back; }));
  ASSERT_TRUE(turn_until(*clients[0], [&] { return call->is_done(); }));
  EXPECT_EQ(moved[0], counted(kElements, 0));
  EXPECT_LT(worker.counters().bytes_copied + server.counters().bytes_copied - copied, chunk_bytes);
}

INSTANTIATE_TEST_SUITE_P(over, ParameterServerTurns, testing::ValuesIn([] {
                           std::vector<Backend> found = backends();
                           std::erase_if(found,
                                         [](const Backend& one) { return one.name != "tcp"; });
                           return found;
                         }()),
                         test_name);

}  // namespace
}  // namespace rdmacoll::conformance
