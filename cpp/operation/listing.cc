#include "operation/listing.h"

#include <algorithm>
#include <array>
#include <vector>

#include "base/text.h"

namespace rdmacoll {
namespace {

constexpr std::size_t kDigests = 4;
constexpr std::size_t kDigestBytes = 8;
enum Digest : std::size_t { kOrder, kNames, kOrderWithoutCounters, kNamesWithoutCounters };

std::string_view digest(std::string_view listing, Digest number) {
  const std::size_t begin = number * kDigestBytes;
  return begin < listing.size() ? listing.substr(begin, kDigestBytes) : std::string_view();
}

std::vector<std::string_view> names_in(std::string_view listing) {
  std::vector<std::string_view> names;
  for (std::size_t at = listing.find('\n'); at != std::string_view::npos;) {
    const std::size_t end = listing.find('\n', at + 1);
    names.push_back(listing.substr(at + 1, end == std::string_view::npos ? end : end - at - 1));
    at = end;
  }
  return names;
}

}  // namespace

std::string_view digests_of(std::string_view listing) {
  return listing.substr(0, kDigests * kDigestBytes);
}

Likeness likeness(std::string_view listing, std::string_view other) {
  const auto agree = [&](Digest number) {
    return digest(listing, number) == digest(other, number);
  };
  if (agree(kOrder)) return Likeness::same;
  if (agree(kNames)) return Likeness::reordered;
  if (agree(kOrderWithoutCounters)) return Likeness::same;
  return agree(kNamesWithoutCounters) ? Likeness::reordered : Likeness::other;
}

std::string describe_difference(std::string_view rank, std::string_view listing,
                                std::string_view other_rank, std::string_view other) {
  constexpr std::size_t kShown = 3;
  const std::vector<std::string_view> mine = names_in(listing), theirs = names_in(other);
  std::vector<std::string_view> here, there;
  for (std::size_t i = 0; i < std::min(mine.size(), theirs.size()) && here.size() < kShown; ++i) {
    if (mine[i] == theirs[i]) continue;
    here.push_back(mine[i]);
    there.push_back(theirs[i]);
  }
  if (here.empty()) return cat(rank, " and ", other_rank, " differ behind the first names");
  return cat(rank, ": ", join(here, ", "), "; ", other_rank, ": ", join(there, ", "));
}

std::string_view name_at(std::string_view listing, std::size_t position, std::size_t count) {
  const std::vector<std::string_view> names = names_in(listing);
  return names.size() == count && position < count ? names[position] : std::string_view();
}

}  // namespace rdmacoll
