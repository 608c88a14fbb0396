// Memory on a peer's GPU, as its views name it.
#include <gtest/gtest.h>

#include <vector>

#include "transport/shm/remote_memory.h"

namespace rdmacoll::shm {
namespace {

class CudaViews : public ::testing::Test {
 protected:
  void SetUp() override {
    remote.add({.begin = 0x1000, .bytes = 256, .mapped = first.data(), .gpu = 0});
    remote.add({.begin = 0x9000, .bytes = 512, .mapped = second.data(), .gpu = 1});
  }
  Status locate(uint64_t address, uint64_t bytes) {
    return remote.locate({address, bytes | kOnGpu}, piece);
  }

  std::vector<std::byte> first = std::vector<std::byte>(256);
  std::vector<std::byte> second = std::vector<std::byte>(512);
  RemoteMemory remote{3};
  RemotePiece piece;
};

TEST_F(CudaViews, a_piece_lies_at_its_offset_in_the_slab) {
  ASSERT_TRUE(locate(0x1000 + 40, 16).ok());
  EXPECT_EQ(piece.mapped, first.data() + 40);
  EXPECT_EQ(piece.bytes, 16u);
  EXPECT_EQ(piece.gpu, 0);
  ASSERT_TRUE(locate(0x9000, 512).ok());
  EXPECT_EQ(piece.mapped, second.data());
  EXPECT_EQ(piece.gpu, 1);
}

TEST_F(CudaViews, a_piece_outside_the_slabs_is_refused) {
  for (const auto& [address, bytes] : std::vector<std::pair<uint64_t, uint64_t>>{
           {0x0fff, 1}, {0x1000, 257}, {0x10ff, 2}, {0x1100, 1}, {0x9000 + 513, 0}, {0, 8}}) {
    EXPECT_FALSE(locate(address, bytes).ok()) << address << ", " << bytes;
  }
}

}  // namespace
}  // namespace rdmacoll::shm
