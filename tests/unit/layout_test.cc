#include "engine/layout.h"

#include <gtest/gtest.h>

#include <random>

namespace rdmacoll {
namespace {

std::byte* address(uint64_t number) { return reinterpret_cast<std::byte*>(number); }

TEST(Layout, parts_of_all_segments_cover_every_byte_once) {
  for (unsigned seed = 1; seed <= 200; ++seed) {
    std::mt19937_64 random(seed);
    std::vector<Layout::Tensor> tensors;
    uint64_t total = 0;
    for (uint64_t i = 0, count = random() % 9; i < count; ++i) {
      const uint64_t bytes = random() % 4 == 0 ? 0 : random() % 5000 * 4;
      tensors.push_back({address(1 << 20), address(2 << 20), bytes});
      total += bytes;
    }
    Layout layout;
    const int parts = 1 + static_cast<int>(random() % 7);
    layout.assign_even(tensors, 64 + random() % 6000, parts);
    uint64_t at = 0;
    for (uint32_t segment = 0; segment < layout.segments(); ++segment) {
      for (int part = 0; part < parts; ++part) {
        const Range range = layout.range(segment, part);
        ASSERT_EQ(range.begin, at) << "seed " << seed;
        ASSERT_LE(range.bytes(), layout.part_bytes_max());
        at = range.end;
        std::vector<Piece> pieces;
        layout.append_input(range, pieces);
        ASSERT_EQ(total_bytes(pieces), range.bytes());
        ASSERT_LE(pieces.size(), layout.pieces_max());
      }
    }
    ASSERT_EQ(at, total) << "seed " << seed;
  }
}

TEST(Layout, parts_begin_at_cache_lines) {
  Layout layout;
  layout.assign_even({{address(0), address(0), 1000}}, 1 << 20, 3);
  EXPECT_EQ(layout.segments(), 1u);
  EXPECT_EQ(layout.range(0, 1).begin, 384u);
  EXPECT_EQ(layout.range(0, 2).begin, 768u);
  EXPECT_EQ(layout.range(0, 2).end, 1000u);
}

TEST(Layout, offsets_beyond_2_to_the_32_are_exact) {
  const uint64_t bytes = (uint64_t{5} << 32) + 4;
  Layout layout;
  layout.assign_even(
      {{address(4096), address(8192), 12}, {address(1 << 20), address(1 << 21), bytes}}, 4 << 20,
      2);
  const Range last = layout.range(layout.segments() - 1, 1);
  EXPECT_EQ(last.end, bytes + 12);
  std::vector<Piece> pieces;
  layout.append_output(last, pieces);
  ASSERT_EQ(pieces.size(), 1u);
  EXPECT_EQ(pieces[0].data, address((1 << 21) + last.begin - 12));
}

TEST(Layout, ragged_parts_of_any_size_are_covered) {
  Layout layout;
  const std::vector<uint64_t> parts{1000, 0, 70000, 8};
  layout.assign_ragged({address(4096), address(1 << 20), 0}, parts, 2, 4096);
  std::vector<uint64_t> covered(4, 0);
  for (uint32_t segment = 0; segment < layout.segments(); ++segment) {
    for (int part = 0; part < 4; ++part) covered[part] += layout.range(segment, part).bytes();
    std::vector<Piece> pieces;
    layout.append_input(layout.range(segment, 2), pieces);
    if (!pieces.empty()) {
      EXPECT_EQ(pieces[0].data, address(4096 + layout.range(segment, 2).begin - 1000));
    }
  }
  EXPECT_EQ(covered, parts);
}

TEST(Layout, nothing_to_move_has_no_segments) {
  Layout layout;
  layout.assign_even({{address(0), address(0), 0}}, 1 << 20, 4);
  EXPECT_EQ(layout.segments(), 0u);
  layout.assign_ragged({nullptr, nullptr, 0}, {0, 0}, 0, 1 << 20);
  EXPECT_EQ(layout.segments(), 0u);
}

}  // namespace
}  // namespace rdmacoll
