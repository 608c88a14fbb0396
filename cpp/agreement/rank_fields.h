// Ranks in messages: each is an int32.
#pragma once

#include <cstdint>
#include <vector>

#include "base/rank.h"
#include "base/wire.h"

namespace rdmacoll {

template <typename Kind>
void put(Writer& writer, Rank<Kind> rank) {
  writer.put(static_cast<int32_t>(rank.value()));
}
template <typename AnyRank>
AnyRank get_rank(Reader& reader, int ranks) {
  const AnyRank rank(reader.get<int32_t>());
  if (rank.is_none() || rank.value() >= ranks) reader.fail();
  return rank;
}
template <typename AnyRank>
void put(Writer& writer, const std::vector<AnyRank>& ranks) {
  writer.put(static_cast<uint32_t>(ranks.size()));
  for (AnyRank rank : ranks) put(writer, rank);
}
// Ranks in a list may be out of range.
template <typename AnyRank>
std::vector<AnyRank> get_ranks(Reader& reader, int count_max) {
  const auto values = reader.get_list<int32_t>(static_cast<std::size_t>(count_max));
  return {values.begin(), values.end()};
}

}  // namespace rdmacoll
