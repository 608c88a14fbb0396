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
        ASSERT_LE(pieces.size(), layout.pieces_max(1));
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

// What a step moves at once must be the same bytes, in the same order, as its parts one by one:
// the other end may take them otherwise.
TEST(Layout, several_parts_at_once_are_those_parts_one_after_the_other) {
  for (unsigned seed = 1; seed <= 200; ++seed) {
    std::mt19937_64 random(seed);
    const int parts = 2 + static_cast<int>(random() % 6);
    Layout layout;
    if (seed % 2 == 0) {
      layout.assign_even({{address(1 << 20), address(2 << 20), 4 + random() % 15000 * 4},
                          {address(4 << 20), address(8 << 20), random() % 15000 * 4}},
                         64 + random() % 30000, parts);
    } else {
      std::vector<uint64_t> bytes{4 + random() % 2000 * 4};
      for (int part = 1; part < parts; ++part) bytes.push_back(random() % 2000 * 4);
      layout.assign_ragged({address(1 << 20), address(2 << 20), 0}, bytes, 0,
                           random() % 3 == 0 ? 1 << 20 : random() % 20000);
    }
    for (uint32_t segment = 0; segment < layout.segments(); ++segment) {
      const int first = static_cast<int>(random() % static_cast<uint64_t>(parts));
      const int count = 1 + static_cast<int>(random() % static_cast<uint64_t>(parts - first));
      std::vector<std::byte*> one_by_one, at_once;
      std::vector<uint64_t> image_one_by_one, image_at_once;
      const auto bytes_of = [&](const Range& range, uint64_t image, auto& bytes, auto& images) {
        std::vector<Piece> pieces;
        layout.append_output(range, pieces);
        for (const Piece& piece : pieces) {
          for (uint64_t i = 0; i < piece.bytes; i += 4) bytes.push_back(piece.data + i);
        }
        for (uint64_t i = 0; i < range.bytes(); i += 4) images.push_back(image + i);
        ASSERT_LE(pieces.size(), layout.pieces_max(count)) << "seed " << seed;
      };
      uint64_t bytes = 0;
      for (int part = first; part < first + count; ++part) {
        bytes_of(layout.range(segment, part), layout.image_offset(segment, part), one_by_one,
                 image_one_by_one);
        bytes += layout.range(segment, part).bytes();
      }
      int part = first;
      layout.each_range(segment, first, count, [&](const Range& range) {
        bytes_of(range, layout.image_offset(segment, part++), at_once, image_at_once);
      });
      ASSERT_EQ(bytes, layout.slice_bytes(segment, first, count)) << "seed " << seed;
      ASSERT_EQ(at_once, one_by_one) << "seed " << seed;
      ASSERT_EQ(image_at_once, image_one_by_one) << "seed " << seed;
    }
  }
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
