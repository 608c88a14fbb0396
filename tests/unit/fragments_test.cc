// Control messages that are longer than a transport's limit.
#include <gtest/gtest.h>

#include "agreement/messages.h"
#include "algorithm_names.h"
#include "transport/transport.h"

namespace rdmacoll {
namespace {

constexpr uint32_t kEpoch = 3;

TEST(Messages, that_are_too_long_go_in_parts) {
  Message read;
  const Message small = CaughtUpMessage{1};
  ASSERT_EQ(encode_in_parts(kEpoch, small).size(), 1u);
  EXPECT_EQ(encode_in_parts(kEpoch, small).front(), encode(kEpoch, small));

  Decision decision{1, {named::pairwise_alltoall, 4096}, {{{1, ""}, 0}}, {}, 9};
  decision.rows.assign(300, std::vector<int64_t>(1000, 7));
  const auto parts = encode_in_parts(kEpoch, decision);
  ASSERT_EQ(parts.size(), 3u);
  std::string whole;
  for (const std::vector<std::byte>& part : parts) {
    EXPECT_LE(part.size(), kControlBytesMax);
    ASSERT_TRUE(decode(kEpoch, 300, part, read));
    const auto& fragment = std::get<FragmentMessage>(read);
    EXPECT_EQ(fragment.is_last, &part == &parts.back());
    whole += fragment.bytes;
  }
  ASSERT_TRUE(decode(kEpoch, 300, std::as_bytes(std::span(whole)), read));
  EXPECT_EQ(std::get<Decision>(read).rows, decision.rows);
}

// A set may be removed between two parts. The parts therefore name no set, and the whole message
// names its set.
TEST(Messages, of_a_set_say_so_once_their_parts_are_one) {
  Decision decision{1, {named::pairwise_alltoall, 4096}, {{{1, ""}, 0}}, {}, 9};
  decision.rows.assign(300, std::vector<int64_t>(1000, 7));
  Message read;
  std::string whole;
  for (const std::vector<std::byte>& part : encode_in_parts(kEpoch, decision, 5)) {
    EXPECT_EQ(addressed_set(part), 0u);
    ASSERT_TRUE(decode(kEpoch, 300, part, read));
    whole += std::get<FragmentMessage>(read).bytes;
  }
  EXPECT_EQ(addressed_set(std::as_bytes(std::span(whole))), 5u);
}

}  // namespace
}  // namespace rdmacoll
