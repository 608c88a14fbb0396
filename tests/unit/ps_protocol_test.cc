// Messages between workers and servers: encoding and refusals.
#include <gtest/gtest.h>

#include <random>

#include "ps/protocol.h"
#include "ps/sharding.h"

namespace rdmacoll::ps {
namespace {

Request example() {
  Request request{.id = 7,
                  .kind = RequestKind::push_rows,
                  .step = 12,
                  .chunk_bytes = 8192,
                  .learning_rate = 0.5};
  request.items = {{3, 100}, {4, 0}};
  request.text = "optimizer=sgd\n";
  request.first_spec = 3;
  request.specs = {{"conv/kernel", Dtype::float32, true, 600, 0, {3, 200}},
                   {"words", Dtype::float64, false, 600, 6, {100, 6}}};
  return request;
}

TEST(PsProtocol, reads_back_what_was_written) {
  Request request;
  ASSERT_TRUE(decode(encode(example()), request));
  EXPECT_EQ(encode(request), encode(example()));
  EXPECT_EQ(request.specs, example().specs);
  EXPECT_EQ(request.items[0].rows, 100U);
  EXPECT_EQ(request.learning_rate, 0.5);
  ASSERT_TRUE(decode(encode(Request{.kind = RequestKind::push, .chunk_bytes = 4096}), request));
  EXPECT_EQ(request.learning_rate, std::nullopt);
  Answer answer;
  ASSERT_TRUE(decode(encode(Answer{5, Answer::Kind::refused, Code::mismatch, "no."}), answer));
  EXPECT_EQ(answer.text, "no.");
  EXPECT_EQ(answer.code, Code::mismatch);
}

TEST(PsProtocol, refuses_what_is_out_of_range) {
  const auto is_refused = [](auto change) {
    Request request = example(), read;
    change(request);
    return !decode(encode(request), read);
  };
  EXPECT_FALSE(is_refused([](Request&) {}));
  EXPECT_TRUE(is_refused([](Request& r) { r.kind = static_cast<RequestKind>(200); }));
  EXPECT_TRUE(is_refused([](Request& r) { r.chunk_bytes = 0; }));
  EXPECT_TRUE(is_refused([](Request& r) { r.chunk_bytes = 8195; }));
  EXPECT_TRUE(is_refused([](Request& r) { r.specs[0].dtype = Dtype::int32; }));
  EXPECT_TRUE(is_refused([](Request& r) { r.specs[0].elements = UINT64_MAX; }));
  EXPECT_TRUE(is_refused([](Request& r) { r.specs[1].row_elements = 7; }));
  EXPECT_TRUE(is_refused([](Request& r) { r.specs[1].dims.resize(kVariableDimsMax + 1, 1); }));
  EXPECT_TRUE(is_refused([](Request& r) { r.items.resize(kItemsMax + 1); }));
  EXPECT_TRUE(is_refused([](Request& r) { r.text = std::string(kRuleBytesMax + 1, 'x'); }));
}

TEST(PsProtocol, survives_every_truncation_and_change) {
  const std::vector<std::byte> whole = encode(example());
  const std::vector<std::byte> answer = encode(Answer{1, Answer::Kind::done, Code::ok, "text"});
  Request request;
  Answer read;
  for (std::size_t length = 0; length < whole.size(); ++length) {
    EXPECT_FALSE(decode(std::span(whole).first(length), request)) << length;
  }
  for (std::size_t length = 0; length < answer.size(); ++length) {
    EXPECT_FALSE(decode(std::span(answer).first(length), read)) << length;
  }
  std::mt19937 random(17);
  for (int round = 0; round < 20'000; ++round) {
    std::vector<std::byte> changed = round % 2 == 0 ? whole : answer;
    for (int i = 0; i < 3; ++i) changed[random() % changed.size()] = std::byte(random());
    if (round % 2 != 0) {
      static_cast<void>(decode(changed, read));
      continue;
    }
    if (!decode(changed, request)) continue;
    EXPECT_LE(request.items.size(), kItemsMax);
    for (const StoredSpec& spec : request.specs) EXPECT_GT(size_of(spec.dtype), 0U);
  }
}

TEST(PsProtocol, chunks_cover_an_item_once) {
  Request request{.kind = RequestKind::push_pull, .chunk_bytes = 4096};
  request.items = {{0, 0}};
  const StoredSpec dense{"w", Dtype::float64, true, 1300, 0};
  std::vector<Chunk> chunks;
  append_chunks(request, 0, dense, chunks);
  ASSERT_EQ(chunks.size(), 3U);
  EXPECT_EQ(chunks[2].first, 1024U);
  EXPECT_EQ(chunks[2].bytes_there, 276 * 8U);
  EXPECT_EQ(chunks[2].bytes_back, 276 * 8U);

  request.kind = RequestKind::pull_rows;
  request.items[0].rows = 90;
  const StoredSpec rows{"w", Dtype::float32, true, 1300, 13};
  EXPECT_EQ(rows_in_a_chunk(rows, 4096), 4096U / 60);
  chunks.clear();
  append_chunks(request, 0, rows, chunks);
  ASSERT_EQ(chunks.size(), 2U);
  EXPECT_EQ(chunks[0].bytes_there, 68 * 8U);
  EXPECT_EQ(chunks[1].bytes_back, 22 * 52U);
}

}  // namespace
}  // namespace rdmacoll::ps
