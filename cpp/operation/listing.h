// The names of an operation's variables, in their order. Ranks match variables by order alone. A
// rank with another order would silently exchange them.
//
// A listing is a text made by rdmacoll/ops/_labels.py. Its first line has four hexadecimal digests:
// of the names in order, of the sorted names, and of both without the counters that frameworks
// append to names. Each further line is one name.
#pragma once

#include <string>
#include <string_view>

namespace rdmacoll {

// Names beyond this limit are cut off, but the digests cover them.
inline constexpr std::size_t kListingBytesMax = 64 << 10;

enum class Likeness {
  same,       // or the names differ in counters only
  reordered,  // the same names in another order
  other,      // some names are not in the other listing
};
Likeness likeness(std::string_view listing, std::string_view other);

// The digests of a listing, which identify it.
std::string_view digests_of(std::string_view listing);

// "rank 0 has a, b, c where rank 1 has b, a, c": the first differences, at most three.
std::string describe_difference(std::string_view rank, std::string_view listing,
                                std::string_view other_rank, std::string_view other);

// The name at `position` in a listing of `count` variables. Returns "" if the listing has another
// number of names, or if names are cut off.
std::string_view name_at(std::string_view listing, std::size_t position, std::size_t count);

}  // namespace rdmacoll
