// A placeholder reports the rows that the other ranks expect from its rank, for every kind.
#include "operation/placeholder.h"

#include <gtest/gtest.h>

#include "every_kind.h"
#include "operation/cut.h"
#include "sim/values.h"

namespace rdmacoll {
namespace {

TEST(Placeholders, are_like_what_the_rank_would_have_submitted) {
  constexpr int kRanks = 4;
  for (const SimOperation& operation : every_kind(kRanks, 11, true)) {
    for (int rank = 0; rank < kRanks; ++rank) {
      SimMemory memory;
      const Request wanted = sim_request(operation, rank, true, memory);
      const std::vector<int64_t> rows = own_rows(wanted, SetRank(rank), kRanks);
      Descriptor descriptor;
      ASSERT_TRUE(decode_descriptor(encode_descriptor(wanted), descriptor));
      EXPECT_TRUE(is_complete(descriptor, rows, SetRank(rank), kRanks)) << operation.name;
      std::vector<int64_t> more = rows;
      more.insert(more.end(), 2, 1);
      EXPECT_FALSE(is_complete(descriptor, more, SetRank(rank), kRanks)) << operation.name;
      Request request = request_like(descriptor, rows, SetRank(rank), kRanks);
      EXPECT_EQ(encode_descriptor(request), encode_descriptor(wanted)) << operation.name;
      EXPECT_EQ(own_rows(request, SetRank(rank), kRanks), rows) << operation.name;
      EXPECT_TRUE(are_own_rows(rows, request, SetRank(rank), kRanks)) << operation.name;
      std::vector<std::byte> zeros(request.bytes() + 1);
      lay_in(request, zeros.data());
      EXPECT_TRUE(check(request, SetRank(rank), kRanks).ok()) << operation.name;
      if (request.kind != Kind::scatter || SetRank(rank) == request.root) {
        EXPECT_EQ(request.bytes(), wanted.bytes()) << operation.name;
      }
    }
  }
}

TEST(OwnRows, are_told_from_others) {
  Request request;
  request.kind = Kind::allgather;
  request.tensors = {{nullptr, nullptr, {3, 2}, ""}, {nullptr, nullptr, {}, ""}};
  EXPECT_TRUE(are_own_rows({3, 1}, request, SetRank(0), 2));
  for (const std::vector<int64_t>& other :
       std::vector<std::vector<int64_t>>{{}, {3}, {3, 2}, {3, 1, 0}}) {
    EXPECT_FALSE(are_own_rows(other, request, SetRank(0), 2)) << other.size();
  }
}

}  // namespace
}  // namespace rdmacoll
