#include "base/wire.h"

#include <gtest/gtest.h>

#include <limits>
#include <random>

namespace rdmacoll {
namespace {

enum class Colour : uint8_t { red = 1, green = 2 };

// A message with every kind of field, as the protocols use them.
struct Message {
  uint8_t kind = 0;
  uint64_t sequence = 0;
  double scale = 0;
  Colour colour = Colour::red;
  std::string name;
  std::vector<std::byte> token;
  std::vector<int64_t> dims;
  std::vector<uint16_t> ports;

  bool operator==(const Message&) const = default;
};

constexpr std::size_t kNameMax = 64;
constexpr std::size_t kTokenMax = 32;
constexpr std::size_t kDimsMax = 8;
constexpr std::size_t kPortsMax = 1000;

void write(const Message& message, Writer& writer) {
  writer.put(message.kind).put(message.sequence).put(message.scale).put(message.colour);
  writer.put_text(message.name).put_bytes(message.token);
  writer.put_list(message.dims).put_list(message.ports);
}

Message read(Reader& reader) {
  Message message;
  message.kind = reader.get<uint8_t>();
  message.sequence = reader.get<uint64_t>();
  message.scale = reader.get<double>();
  message.colour = reader.get<Colour>();
  message.name = reader.get_text(kNameMax);
  message.token = reader.get_list<std::byte>(kTokenMax);
  message.dims = reader.get_list<int64_t>(kDimsMax);
  message.ports = reader.get_list<uint16_t>(kPortsMax);
  return message;
}

Message example() {
  return {7,
          uint64_t{1} << 40,
          -0.5,
          Colour::green,
          "conv1/kernel",
          std::vector<std::byte>(kTokenMax, std::byte{0xab}),
          {3, -1, int64_t{1} << 33},
          {1, 2, 3}};
}

TEST(Wire, reads_back_what_was_written) {
  Writer writer;
  write(example(), writer);
  Reader reader(writer.bytes());
  EXPECT_EQ(read(reader), example());
  EXPECT_TRUE(reader.done());
}

TEST(Wire, is_little_endian_without_padding) {
  Writer writer;
  writer.put(uint8_t{1}).put(uint32_t{0x04030201}).put_text("ab");
  const std::vector<std::byte> bytes(writer.bytes().begin(), writer.bytes().end());
  const uint8_t expected[] = {1, 1, 2, 3, 4, 2, 0, 0, 0, 'a', 'b'};
  ASSERT_EQ(bytes.size(), sizeof expected);
  EXPECT_EQ(std::memcmp(bytes.data(), expected, sizeof expected), 0);
}

TEST(Wire, refuses_every_truncation) {
  Writer writer;
  write(example(), writer);
  for (std::size_t length = 0; length < writer.size(); ++length) {
    Reader reader(writer.bytes().first(length));
    read(reader);
    EXPECT_FALSE(reader.ok()) << "cut after " << length << " bytes";
    EXPECT_FALSE(reader.done());
  }
}

TEST(Wire, notices_bytes_that_are_left_over) {
  Writer writer;
  write(example(), writer);
  writer.put(uint8_t{0});
  Reader reader(writer.bytes());
  read(reader);
  EXPECT_TRUE(reader.ok());
  EXPECT_FALSE(reader.done());
  EXPECT_EQ(reader.left(), 1U);
}

TEST(Wire, refuses_lengths_above_the_limit_or_the_message) {
  const auto length_of = [](uint32_t length, std::size_t payload) {
    Writer writer;
    writer.put(length);
    for (std::size_t i = 0; i < payload; ++i) writer.put(uint8_t{'x'});
    return writer;
  };
  const Writer over_limit = length_of(9, 9);
  Reader text(over_limit.bytes());
  EXPECT_EQ(text.get_text(8), "");
  EXPECT_FALSE(text.ok());
  const Writer over_end = length_of(9, 8);
  Reader bytes(over_end.bytes());
  EXPECT_TRUE(bytes.get_list<std::byte>(100).empty());
  EXPECT_FALSE(bytes.ok());
  // 2^29 elements of 8 bytes are 2^32 bytes: the product must not wrap.
  const Writer absurd = length_of(1U << 29, 16);
  Reader list(absurd.bytes());
  EXPECT_TRUE(list.get_list<uint64_t>(std::numeric_limits<std::size_t>::max()).empty());
  EXPECT_FALSE(list.ok());
  const Writer most = length_of(std::numeric_limits<uint32_t>::max(), 16);
  Reader longest(most.bytes());
  EXPECT_TRUE(longest.get_list<uint64_t>(std::numeric_limits<std::size_t>::max()).empty());
  EXPECT_FALSE(longest.ok());
}

TEST(Wire, reads_zero_after_a_failure) {
  Writer writer;
  writer.put(uint16_t{0xffff}).put(uint64_t{5});
  Reader reader(writer.bytes());
  reader.fail();
  EXPECT_EQ(reader.get<uint16_t>(), 0);
  EXPECT_EQ(reader.get_text(10), "");
  EXPECT_TRUE(reader.get_list<int>(10).empty());
  EXPECT_EQ(reader.left(), 0U);
  EXPECT_FALSE(reader.ok());
}

TEST(Wire, empty_texts_and_lists_are_fine) {
  Writer writer;
  writer.put_text("").put_bytes({}).put_list(std::vector<uint64_t>{});
  Reader reader(writer.bytes());
  EXPECT_EQ(reader.get_text(0), "");
  EXPECT_TRUE(reader.get_list<std::byte>(0).empty());
  EXPECT_TRUE(reader.get_list<uint64_t>(0).empty());
  EXPECT_TRUE(reader.done());
}

// For any bytes, reading ends and stays within its limits and within the buffer. The buffer has its
// own allocation, so the address sanitizer sees a read of one byte too many.
TEST(Wire, survives_random_truncated_and_mutated_messages) {
  const uint64_t seed = std::random_device{}();
  SCOPED_TRACE(::testing::Message() << "seed " << seed);
  std::mt19937_64 random(seed);
  Writer writer;
  write(example(), writer);
  const std::vector<std::byte> valid(writer.bytes().begin(), writer.bytes().end());
  int accepted = 0;
  for (int turn = 0; turn < 50'000; ++turn) {
    std::vector<std::byte> bytes = valid;
    if (turn % 3 == 0) {
      bytes.resize(random() % 200);
      for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
    } else {
      const std::size_t changes = 1 + random() % 4;
      for (std::size_t i = 0; i < changes; ++i) {
        bytes[random() % bytes.size()] = static_cast<std::byte>(random());
      }
      if (turn % 3 == 2) bytes.resize(random() % (bytes.size() + 1));
    }
    const std::vector<std::byte> exact(bytes);
    Reader reader(exact);
    const Message message = read(reader);
    ASSERT_LE(message.name.size(), kNameMax);
    ASSERT_LE(message.token.size(), kTokenMax);
    ASSERT_LE(message.dims.size(), kDimsMax);
    ASSERT_LE(message.ports.size(), kPortsMax);
    if (reader.done()) {
      ++accepted;
      Writer again;  // an accepted message encodes to the same bytes
      write(message, again);
      ASSERT_EQ(std::vector(again.bytes().begin(), again.bytes().end()), exact);
    }
  }
  EXPECT_GT(accepted, 0);  // some mutations change only values
}

}  // namespace
}  // namespace rdmacoll
