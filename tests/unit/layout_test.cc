#include "execution/layout.h"

#include <gtest/gtest.h>

#include <random>

#include "sanitized.h"

namespace rdmacoll {
namespace {

std::byte* address(uint64_t number) { return reinterpret_cast<std::byte*>(number); }

TEST(Layout, parts_of_all_segments_cover_every_byte_once) {
  for (unsigned seed = 1; seed <= seeds(200); ++seed) {
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

// Checks every part of a cut as the executor finds it. Inputs and outputs consist of the parts that
// the cut names, each byte once and in order.
void check_cut(const Cut& cut, uint64_t segment_bytes) {
  const std::size_t tensors = cut.row_bytes.size();
  std::vector<std::byte*> inputs, outputs;
  for (std::size_t t = 0; t < tensors; ++t) {
    inputs.push_back(address((t + 1) << 32));
    outputs.push_back(address((t + 100) << 32));
  }
  Layout layout;
  layout.assign_ragged(cut, inputs, outputs, segment_bytes);
  for (const bool in : {true, false}) {
    const Cut::Span& span = in ? cut.input : cut.output;
    std::vector<std::byte*> at = in ? inputs : outputs;
    for (int part = 0; part < static_cast<int>(cut.rows.size()); ++part) {
      std::vector<Piece> all;
      for (uint32_t segment = 0; segment < layout.segments(); ++segment) {
        const Range range = layout.range(segment, part);
        ASSERT_LE(range.bytes(), layout.part_bytes_max());
        if (part < span.first || part >= span.last) continue;
        std::vector<Piece> pieces;
        if (in) layout.append_input(range, pieces);
        if (!in) layout.append_output(range, pieces);
        ASSERT_EQ(total_bytes(pieces), range.bytes());
        ASSERT_LE(pieces.size(), layout.pieces_max(1));
        all.insert(all.end(), pieces.begin(), pieces.end());
      }
      if (part < span.first || part >= span.last) continue;
      auto piece = all.begin();
      for (std::size_t t = 0; t < tensors; ++t) {
        const std::byte* end = at[t] + static_cast<uint64_t>(cut.rows[part][t]) * cut.row_bytes[t];
        for (; at[t] < end; at[t] += piece++->bytes) {
          ASSERT_TRUE(piece != all.end());
          ASSERT_EQ(piece->data, at[t]);
        }
        ASSERT_EQ(at[t], end);
      }
      ASSERT_TRUE(piece == all.end());
    }
  }
}

// Returns the cut as the planner gets it. In an alltoall a rank knows its given rows, and the root
// tells it its received rows.
Cut cut_for(const Descriptor& descriptor, const RowTable& said, int rank, int ranks) {
  if (descriptor.kind != Kind::alltoall) return cut_of(descriptor, said, SetRank(rank), ranks);
  Exchange exchange{said[rank], {}, most_rows(said)};
  for (const std::vector<int64_t>& numbers : said) exchange.got.push_back(numbers[rank]);
  return exchange_cut(descriptor, exchange);
}

TEST(Layout, every_cut_finds_every_byte_once) {
  constexpr Kind kKinds[] = {Kind::allgather, Kind::reducescatter, Kind::alltoall, Kind::gather,
                             Kind::scatter};
  for (unsigned seed = 1; seed <= seeds(300); ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    const int ranks = 1 + static_cast<int>(random() % 6);
    Descriptor descriptor;
    descriptor.kind = kKinds[random() % std::size(kKinds)];
    descriptor.dtype = Dtype::float64;
    descriptor.root = SetRank(static_cast<int>(random() % ranks));
    const bool groups = row_of(descriptor.kind).takes_groups;
    const std::size_t tensors = groups ? 1 + random() % 4 : 1;
    const auto rows = [&] { return static_cast<int64_t>(random() % 3 == 0 ? 0 : random() % 40); };
    for (std::size_t t = 0; t < tensors; ++t) {
      descriptor.shapes.push_back({descriptor.kind == Kind::reducescatter ? rows() : -1,
                                   static_cast<int64_t>(random() % 30)});
    }
    RowTable said(row_of(descriptor.kind).first_may_differ ? ranks : 0);
    for (int rank = 0; rank < static_cast<int>(said.size()); ++rank) {
      const bool is_split = descriptor.kind == Kind::alltoall || descriptor.kind == Kind::scatter;
      said[rank].resize(is_split ? ranks : tensors);
      if (descriptor.kind == Kind::scatter && SetRank(rank) != descriptor.root) said[rank].clear();
      for (int64_t& number : said[rank]) number = rows();
    }
    ASSERT_EQ(incomplete_rank(descriptor, said, ranks), SetRank());
    uint32_t segments = 0;
    for (int rank = 0; rank < ranks; ++rank) {
      const Cut cut = cut_for(descriptor, said, rank, ranks);
      check_cut(cut, 64 + random() % 4000);
      if (HasFatalFailure()) return;
      Layout layout;  // all ranks cut the same segments
      const std::vector<std::byte*> anywhere(tensors, address(4096));
      layout.assign_ragged(cut, anywhere, anywhere, 640);
      if (rank > 0) {
        ASSERT_EQ(layout.segments(), segments);
      }
      segments = layout.segments();
    }
  }
}

TEST(Layout, memory_that_a_rank_does_not_have_is_never_named) {
  Descriptor gather;
  gather.kind = Kind::gather;
  gather.dtype = Dtype::uint8;
  gather.shapes = {{-1}};
  Layout layout;
  layout.assign_ragged(cut_of(gather, {{100}, {100}}, SetRank(1), 2), {address(4096)}, {nullptr},
                       4096);
  std::vector<Piece> pieces;
  layout.append_input(layout.range(0, 1), pieces);
  EXPECT_EQ(pieces.front().data, address(4096));
  EXPECT_DEATH(layout.append_output(layout.range(0, 1), pieces), "no memory of this rank");
}

TEST(Cut, needs_what_every_rank_has_to_say_and_nothing_else) {
  Descriptor descriptor;
  descriptor.shapes = {{-1, 2}};
  descriptor.root = SetRank(1);
  descriptor.kind = Kind::alltoall;
  EXPECT_EQ(incomplete_rank(descriptor, {{1, 2}, {3, 4}}, 2), SetRank());
  EXPECT_EQ(incomplete_rank(descriptor, {{1, 2}}, 2), SetRank(1));
  EXPECT_EQ(incomplete_rank(descriptor, {{1}, {3, 4}}, 2), SetRank());  // one number for all
  EXPECT_EQ(incomplete_rank(descriptor, {{1, 2, 3}, {3, 4}}, 2), SetRank(0));
  descriptor.kind = Kind::scatter;
  EXPECT_EQ(incomplete_rank(descriptor, {{}, {3, 4}}, 2), SetRank());
  EXPECT_EQ(incomplete_rank(descriptor, {{3, 4}}, 2), SetRank(0));
  EXPECT_EQ(incomplete_rank(descriptor, {}, 2), SetRank(1));
  descriptor.kind = Kind::gather;
  EXPECT_EQ(incomplete_rank(descriptor, {{7}, {0}}, 2), SetRank());
  EXPECT_EQ(incomplete_rank(descriptor, {}, 2), SetRank(0));
  for (const Kind kind : {Kind::allreduce, Kind::reducescatter, Kind::barrier}) {
    descriptor.kind = kind;
    EXPECT_EQ(incomplete_rank(descriptor, {}, 2), SetRank());
    EXPECT_EQ(incomplete_rank(descriptor, {{}, {1}}, 2), SetRank(1));
  }
}

// Down the tree, each rank gets the columns of its subtree, and in the end its own column.
TEST(Cut, tells_each_rank_what_it_gets) {
  const RowTable said = {{1, 2, 3, 4}, {7}, {10, 20, 30, 40}, {0, 0, 0, 5}};
  const SetRank one(1), three(3);
  RowTable below, mine;
  ASSERT_TRUE(columns_of(said, {SetRank(0), one, SetRank(2), three}, {one, three}, below));
  EXPECT_EQ(below, (RowTable{{2, 4}, {7}, {20, 40}, {0, 5}}));
  ASSERT_TRUE(columns_of(below, {one, three}, {three}, mine));
  EXPECT_EQ(mine, (RowTable{{4}, {7}, {40}, {5}}));
  EXPECT_FALSE(columns_of(said, {one, three}, {three}, mine));
  EXPECT_EQ(most_rows(said), 40);
}

TEST(Cut, says_one_number_where_all_get_as_many) {
  Request request;
  request.kind = Kind::alltoall;
  request.tensors = {{nullptr, nullptr, {12, 5}, ""}};
  EXPECT_EQ(own_rows(request, SetRank(1), 4), (std::vector<int64_t>{3}));
  request.splits = {3, 3, 3, 3};
  EXPECT_EQ(own_rows(request, SetRank(1), 4), (std::vector<int64_t>{3}));
  request.splits = {0, 12, 0, 0};
  EXPECT_EQ(own_rows(request, SetRank(1), 4), request.splits);
  Descriptor descriptor;
  descriptor.kind = Kind::alltoall;
  descriptor.dtype = Dtype::float32;
  descriptor.shapes = {{-1, 5}};
  EXPECT_EQ(incomplete_rank(descriptor, {{3}, {0, 12, 0, 0}, {3}, {3}}, 4), SetRank());
  EXPECT_EQ(bytes_moved(descriptor, {{3}, {0, 12, 0, 0}, {3}, {3}}, 4), 4u * 12 * 5 * 4);
}

TEST(Cut, gives_the_first_ranks_one_row_more) {
  EXPECT_EQ(even_rows(10, 4), (std::vector<int64_t>{3, 3, 2, 2}));
  EXPECT_EQ(even_rows(2, 3), (std::vector<int64_t>{1, 1, 0}));
  EXPECT_EQ(even_rows(0, 2), (std::vector<int64_t>{0, 0}));
}

// A step that moves several parts at once must move the same bytes, in the same order, as one step
// for each part. The other end may divide them otherwise.
TEST(Layout, several_parts_at_once_are_those_parts_one_after_the_other) {
  for (unsigned seed = 1; seed <= seeds(200); ++seed) {
    std::mt19937_64 random(seed);
    const int parts = 2 + static_cast<int>(random() % 6);
    Layout layout;
    if (seed % 2 == 0) {
      layout.assign_even({{address(1 << 20), address(2 << 20), 4 + random() % 15000 * 4},
                          {address(4 << 20), address(8 << 20), random() % 15000 * 4}},
                         64 + random() % 30000, parts);
    } else {
      Cut cut;
      cut.row_bytes = {4};
      cut.output = {0, parts};
      for (int part = 0; part < parts; ++part) {
        const auto rows = static_cast<int64_t>(random() % 2000) + (part == 0 ? 1 : 0);
        cut.rows.push_back({rows});
        cut.part_bytes_max = std::max(cut.part_bytes_max, 4 * static_cast<uint64_t>(rows));
      }
      layout.assign_ragged(cut, {nullptr}, {address(2 << 20)},
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
  Cut cut;
  cut.rows = {{0}, {0}};
  cut.row_bytes = {4};
  layout.assign_ragged(cut, {nullptr}, {nullptr}, 1 << 20);
  EXPECT_EQ(layout.segments(), 0u);
}

}  // namespace
}  // namespace rdmacoll
