#include "probe/pair_task.h"

#include <gtest/gtest.h>

namespace rdmacoll::probe {
namespace {

Message some_message() {
  return {.kind = Message::Kind::task,
          .task = {.pattern = Pattern::stream,
                   .forward = false,
                   .checks = true,
                   .bytes = 123'456,
                   .rounds = 77,
                   .window = 5},
          .wrong_bytes = 9};
}

TEST(PairTask, is_read_as_it_was_written) {
  Message read;
  ASSERT_TRUE(decode(encode(some_message()), read));
  EXPECT_EQ(encode(read), encode(some_message()));
  EXPECT_EQ(read.task.bytes, 123'456u);
  EXPECT_EQ(read.task.rounds, 77u);
  EXPECT_FALSE(read.task.sends(true));
  EXPECT_TRUE(read.task.sends(false));
  EXPECT_TRUE(read.task.receives(true));
  EXPECT_FALSE(read.task.receives(false));
}

TEST(PairTask, of_any_other_length_is_refused) {
  std::vector<std::byte> bytes = encode(some_message());
  Message read;
  for (std::size_t length = 0; length < bytes.size(); ++length) {
    EXPECT_FALSE(decode(std::span(bytes).first(length), read)) << length;
  }
  bytes.push_back(std::byte{0});
  EXPECT_FALSE(decode(bytes, read));
}

TEST(PairTask, that_makes_no_sense_is_refused) {
  Message read;
  for (const uint32_t window : {0u, kWindowMax + 1, UINT32_MAX}) {
    Message message = some_message();
    message.task.window = window;
    EXPECT_FALSE(decode(encode(message), read)) << window;
  }
  Message message = some_message();
  message.kind = static_cast<Message::Kind>(17);
  EXPECT_FALSE(decode(encode(message), read));
  message = some_message();
  message.task.pattern = static_cast<Pattern>(3);
  EXPECT_FALSE(decode(encode(message), read));
}

TEST(Paint, tells_sender_slot_and_every_byte_apart) {
  for (const std::size_t bytes : {1, 7, 8, 9, 4096, 4099}) {
    std::vector<std::byte> memory(bytes);
    const Piece piece{memory.data(), bytes};
    paint(piece, 1, 4);
    EXPECT_EQ(count_wrong(piece, 1, 4), 0u);
    if (bytes > 8) {
      EXPECT_GT(count_wrong(piece, 0, 4), bytes / 2);
      EXPECT_GT(count_wrong(piece, 1, 5), bytes / 2);
    }
    memory.back() ^= std::byte{1};
    EXPECT_EQ(count_wrong(piece, 1, 4), 1u);
  }
}

}  // namespace
}  // namespace rdmacoll::probe
