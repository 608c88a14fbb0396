// Pushes of many small chunks to servers that are away meanwhile.
#include "conformance/ps_fleet.h"

namespace rdmacoll::conformance {
namespace {

constexpr std::size_t kSmallChunk = ps::kChunkBytesLeast;
constexpr std::size_t kChunks = 1000;  // more than may go ahead of their receives
constexpr int kTurnsAway = 1000;

class ParameterServerAhead : public PsFleet {};

TEST_P(ParameterServerAhead, server_that_is_away_loses_nothing_of_many_small_chunks) {
  chunk_bytes = kSmallChunk;
  open(2, 1);
  constexpr std::size_t kElements = kChunks * kSmallChunk / sizeof(float);
  const std::vector<VariableSpec> specs = {floats("w", {static_cast<int64_t>(kElements)})};
  begin(specs, {counted(kElements, 0)});
  std::vector<std::vector<std::vector<float>>> gradients;
  std::vector<CallRef> calls;
  for (int worker : {0, 1}) {
    gradients.push_back({std::vector<float>(kElements, -1.F - static_cast<float>(worker))});
  }
  for (std::size_t worker : {0, 1}) {
    calls.push_back(clients[worker]->push(tensors(gradients[worker])));
  }
  for (int i = 0; i < kTurnsAway; ++i) {
    fleet->step();
    for (auto& client : clients) client->turn();
  }
  for (const CallRef& call : calls) run(call);
  std::vector<std::vector<float>> pulled = {std::vector<float>(kElements)};
  run(clients[1]->pull(tensors(pulled)));
  EXPECT_EQ(pulled.front(), counted(kElements, 1 + 2));
}

INSTANTIATE_TEST_SUITE_P(Backends, ParameterServerAhead, testing::ValuesIn(backends()), test_name);

}  // namespace
}  // namespace rdmacoll::conformance
