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

INSTANTIATE_TEST_SUITE_P(over, ParameterServerTurns, testing::ValuesIn([] {
                           std::vector<Backend> found = backends();
                           std::erase_if(found,
                                         [](const Backend& one) { return one.name != "tcp"; });
                           return found;
                         }()),
                         test_name);

}  // namespace
}  // namespace rdmacoll::conformance
