// Chunks that a worker packs into its pool, and a server reads where they lie.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "conformance/ps_fleet.h"
#include "ps/protocol.h"

namespace rdmacoll::conformance {
namespace {

constexpr std::size_t kChunks = 50;
constexpr std::size_t kElements = kChunks * kChunkBytes / sizeof(float);

class ParameterServerViews : public PsFleet {
 protected:
  void begin_large() { begin({floats("large", {kElements})}, {std::vector<float>(kElements)}); }

  // Publishes `pieces` as a damaged worker does for a push of one chunk. The server then reads
  // them.
  void give(std::span<const Piece> pieces) {
    Transport& transport = *fleet->transports[1];
    ps::Request request{
        .kind = ps::RequestKind::push, .chunk_bytes = kChunkBytes, .items = {{0, 0}}};
    const std::vector<std::byte> bytes = encode(request);
    fleet->offer([&] { return transport.post_control(2, bytes); });
    fleet->offer([&] { return transport.publish({2, ps::kLaneThere, 0, pieces, 0}); });
  }

  // Worker 1 has made no calls, so its ids and sequences begin at 0.
  void open_beside_a_damaged_one() {
    open(2, 1);
    clients[1].reset();
    begin_first();
  }
  void declare_large() {
    const bool decays = true;
    CallRef declared;
    ASSERT_TRUE(
        clients[0]->declare({{floats("large", {kElements})}}, {&decays, 1}, kSgd, declared).ok());
    run(declared);
  }
  void begin_first() {
    declare_large();
    std::vector<std::vector<float>> values = {std::vector<float>(kElements)};
    run(clients[0]->init(tensors(values)));
  }
  // Allocates all memory into which worker 0 could pack chunks.
  std::vector<std::byte*> take_pool() {
    std::vector<std::byte*> taken;
    while (std::byte* memory = fleet->pools[0]->allocate(kChunkBytes)) taken.push_back(memory);
    return taken;
  }
  void expect_hung_up() {
    ASSERT_TRUE(run_until(
        [&] { return servers[0]->stats_json().find("\"lost\": 1") != std::string::npos; }));
    EXPECT_THAT(servers[0]->take_losses().at(0), testing::HasSubstr("it sent an invalid request"));
    std::vector<std::vector<float>> pulled = {counted(kElements, 1)};
    run(clients[0]->pull(tensors(pulled)));
    EXPECT_EQ(pulled[0], std::vector<float>(kElements));
  }
};

TEST_P(ParameterServerViews, are_read_where_they_lie) {
  open(2, 1);
  begin_large();
  const auto copied = [this] { return fleet->transports[2]->counters().bytes_copied; };
  const uint64_t before = copied();
  std::vector<std::vector<float>> gradient = {counted(kElements, 0)};
  std::vector<CallRef> calls;
  for (int step = 0; step < 4; ++step) {
    for (auto& client : clients) calls.push_back(client->push(tensors(gradient)));
  }
  for (const CallRef& call : calls) run(call);
  EXPECT_EQ(copied(), before) << "the transport has copied at the server";

  std::vector<std::vector<float>> pulled = {std::vector<float>(kElements)};
  run(clients[0]->pull(tensors(pulled)));
  for (float& value : pulled[0]) value /= -8;
  EXPECT_EQ(pulled, gradient);
}

TEST_P(ParameterServerViews, take_a_few_chunks_of_the_pool_and_give_them_back) {
  open(1, 2);
  const std::size_t used = fleet->pools[0]->used();
  begin_large();
  std::vector<std::vector<float>> gradient = {counted(kElements, 0)};
  std::vector<CallRef> calls;
  for (int step = 0; step < 8; ++step) calls.push_back(clients[0]->push(tensors(gradient)));
  std::size_t most = 0;
  ASSERT_TRUE(run_until([&] {
    most = std::max(most, fleet->pools[0]->used() - used);
    return std::all_of(calls.begin(), calls.end(),
                       [](const CallRef& call) { return call->is_done(); });
  }));
  EXPECT_GT(most, 0u);
  EXPECT_LE(most, 2 * 3 * kChunkBytes) << "of two servers, three chunks each";
  clients[0].reset();
  EXPECT_EQ(fleet->pools[0]->used(), used);
}

TEST_P(ParameterServerViews, without_memory_to_pack_into_are_an_error_that_says_so) {
  open(1, 1);
  const std::vector<std::byte*> taken = take_pool();
  std::vector<std::vector<float>> values = {std::vector<float>(kElements)};
  declare_large();
  EXPECT_THAT(wait(clients[0]->init(tensors(values))).message(),
              testing::AllOf(testing::HasSubstr("has no 4 KiB left to pack into"),
                             testing::HasSubstr("Raise TF_RDMA_BUF_SIZE.")));
  for (std::byte* memory : taken) fleet->pools[0]->free(memory);
}

TEST_P(ParameterServerViews, go_on_with_memory_for_one) {
  open(1, 1);
  std::vector<std::byte*> taken = take_pool();
  fleet->pools[0]->free(taken.back());
  taken.pop_back();
  begin_first();
  std::vector<std::vector<float>> gradient = {counted(kElements, 0)};
  run(clients[0]->push(tensors(gradient)));
  for (std::byte* memory : taken) fleet->pools[0]->free(memory);
}

TEST_P(ParameterServerViews, grow_for_rows_that_are_larger) {
  constexpr std::size_t kColumns = 100'000;
  chunk_bytes = std::size_t{1} << 20;
  open(1, 1);
  begin({floats("words", {4, kColumns}, true)}, {std::vector<float>(4 * kColumns)});
  std::vector<std::vector<float>> whole = {std::vector<float>(4 * kColumns, -1)};
  run(clients[0]->push(tensors(whole)));  // in chunks of 256 KiB
  const std::vector<int64_t> rows = {2, 1};
  const std::vector<float> gradients(2 * kColumns, -1);
  CallRef pushed;
  ASSERT_TRUE(clients[0]
                  ->push_rows(0, rows, reinterpret_cast<const std::byte*>(gradients.data()), pushed)
                  .ok());
  run(pushed);
  run(clients[0]->pull(tensors(whole)));
  std::vector<float> expected(4 * kColumns, 1);
  std::fill(expected.begin() + kColumns, expected.end() - kColumns, 2.F);
  EXPECT_EQ(whole[0], expected);
}

TEST_P(ParameterServerViews, of_a_worker_that_dies_while_they_are_shown_are_forgotten) {
  open(2, 1);
  begin_large();
  const std::size_t used = fleet->pools[1]->used();
  std::vector<std::vector<float>> gradient = {counted(kElements, 0)};
  clients[1]->push(tensors(gradient));
  // The worker has published its chunks. The server has seen some of them.
  ASSERT_TRUE(run_until([&] { return fleet->pools[1]->used() > used; }));
  clients[1].reset();
  fleet->transports[1].reset();
  ASSERT_TRUE(
      run_until([&] { return servers[0]->stats_json().find("\"lost\": 1") != std::string::npos; }));
  for (int step = 0; step < 3; ++step) run(clients[0]->push(tensors(gradient)));
  run(clients[0]->leave());
  EXPECT_TRUE(run_until([&] { return servers[0]->is_done(); }));
}

TEST_P(ParameterServerViews, of_another_size_are_nonsense) {
  open_beside_a_damaged_one();
  std::byte* const memory = fleet->pools[1]->allocate(kChunkBytes);
  const Piece piece{memory, kChunkBytes / 2};
  give({&piece, 1});
  expect_hung_up();
  fleet->pools[1]->free(memory);
}

TEST_P(ParameterServerViews, in_pieces_are_nonsense) {
  open_beside_a_damaged_one();
  std::byte* const memory = fleet->pools[1]->allocate(2 * kChunkBytes);
  const std::array<Piece, 2> pieces = {
      {{memory, kChunkBytes / 2}, {memory + kChunkBytes, kChunkBytes / 2}}};
  give(pieces);
  expect_hung_up();
  fleet->pools[1]->free(memory);
}

TEST_P(ParameterServerViews, between_the_places_of_numbers_are_nonsense) {
  if (GetParam().name == "sim_read") return;  // this backend copies the piece to aligned memory
  open_beside_a_damaged_one();
  std::byte* const memory = fleet->pools[1]->allocate(2 * kChunkBytes);
  const Piece piece{memory + 2, kChunkBytes};
  give({&piece, 1});
  expect_hung_up();
  fleet->pools[1]->free(memory);
}

INSTANTIATE_TEST_SUITE_P(All, ParameterServerViews, testing::ValuesIn(backends_with_views()),
                         test_name);

}  // namespace
}  // namespace rdmacoll::conformance
