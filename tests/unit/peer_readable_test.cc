#include "memory/peer_readable.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <vector>

namespace rdmacoll {
namespace {

TEST(PeerReadable, is_what_the_kernel_lets_other_processes_read) {
  std::vector<std::byte> memory(1 << 20);
  const Piece usual{memory.data(), memory.size()};
  const Piece byte{memory.data(), 1};
  EXPECT_TRUE(are_peer_readable({}));
  EXPECT_TRUE(are_peer_readable(std::vector{usual, byte, Piece{nullptr, 0}}));
  EXPECT_TRUE(are_peer_readable(std::vector(1000, usual)));

  constexpr std::size_t kPage = 4096;
  void* const pages =
      ::mmap(nullptr, 2 * kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(pages, MAP_FAILED);
  const Piece half{static_cast<std::byte*>(pages), 2 * kPage};
  EXPECT_TRUE(are_peer_readable({&half, 1}));
  ASSERT_EQ(::mprotect(static_cast<std::byte*>(pages) + kPage, kPage, PROT_NONE), 0);
  EXPECT_FALSE(are_peer_readable({&half, 1}));
  std::vector<Piece> many(1000, usual);
  many[500] = half;
  EXPECT_FALSE(are_peer_readable(many));
  ::munmap(pages, 2 * kPage);
}

}  // namespace
}  // namespace rdmacoll
