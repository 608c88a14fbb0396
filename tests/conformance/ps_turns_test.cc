// The turns that a request takes over TCP: each turn writes once to each peer.
#include "conformance/ps_fleet.h"

namespace rdmacoll::conformance {
namespace {

// Each side does all that it can before the other one does anything.
class ParameterServerTurns : public PsFleet {
 protected:
  template <typename Side, typename Done>
  static bool turn_until(Side& side, Done done) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (!done() && std::chrono::steady_clock::now() < deadline) side.turn();
    return done();
  }
  // One push_pull of `elements` elements, whose data takes one way each: there, and back.
  void push_pull_one_way_each(std::size_t elements) {
    begin({floats("these", {static_cast<int64_t>(elements)})}, {counted(elements, 1)});
    for (int i = 0; i < 10; ++i) turn();
    Transport &worker = *fleet->transports[0], &server = *fleet->transports[1];
    const uint64_t bytes = elements * sizeof(float);
    const uint64_t there = worker.counters().bytes_sent + bytes;
    const uint64_t back = server.counters().bytes_sent + bytes;
    const uint64_t copied_before = copied_by_transports();
    std::vector<std::vector<float>> moved = {std::vector<float>(elements, 1)};
    const CallRef call = clients[0]->push_pull(tensors(moved));
    ASSERT_TRUE(turn_until(*clients[0], [&] { return worker.counters().bytes_sent == there; }));
    ASSERT_TRUE(turn_until(*servers[0], [&] { return server.counters().bytes_sent == back; }));
    EXPECT_FALSE(call->is_done());
    ASSERT_TRUE(turn_until(*clients[0], [&] { return call->is_done(); }));
    EXPECT_EQ(moved[0], counted(elements, 0));
    copied = copied_by_transports() - copied_before;
  }

  uint64_t copied = 0;  // bytes, in the last push_pull

 private:
  uint64_t copied_by_transports() const {
    return fleet->transports[0]->counters().bytes_copied +
           fleet->transports[1]->counters().bytes_copied;
  }
};

TEST_P(ParameterServerTurns, a_small_request_is_answered_with_one_message) {
  open(1, 1);
  push_pull_one_way_each(5);
}

// The data is larger than what goes ahead of its grant without an announcement.
TEST_P(ParameterServerTurns, a_large_request_and_its_answer_wait_for_no_grants) {
  constexpr std::size_t kElements = 100 * 1024 / sizeof(float);
  chunk_bytes = kElements * sizeof(float);
  open(1, 1);
  push_pull_one_way_each(kElements);
  EXPECT_LT(copied, chunk_bytes);
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
