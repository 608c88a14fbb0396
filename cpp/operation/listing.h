// The names of the variables that an operation is about, in their order. Ranks match variables by
// their order alone, so a rank that lists them in another order would exchange them silently.
//
// A listing is a text: one line of four digests in hexadecimal, of the names in order and of the
// sorted names, first as they are, then without the counters that frameworks add to names; then a
// name on each line. It is made by rdmacoll/ops/_labels.py.
#pragma once

#include <string>
#include <string_view>

namespace rdmacoll {

// Labels that are cut off are in the digests.
inline constexpr std::size_t kListingBytesMax = 64 << 10;

enum class Likeness {
  same,       // or names that differ by counters alone
  reordered,  // the same names in another order
  other,      // names that the other one does not have
};
Likeness likeness(std::string_view listing, std::string_view other);

// What tells two listings apart.
std::string_view digests_of(std::string_view listing);

// "rank 0 has a, b, c where rank 1 has b, a, c": at the first places that differ, at most three.
std::string describe_difference(std::string_view rank, std::string_view listing,
                                std::string_view other_rank, std::string_view other);

// The name at this position of a listing of `count` variables; "" when it has another number of
// names, or when names are cut off.
std::string_view name_at(std::string_view listing, std::size_t position, std::size_t count);

}  // namespace rdmacoll
