// The algorithms that are forced for sizes: in "a:32k:b" the first one up to 32 KiB, and the second
// one above. The all_reduce_spec of tf_cnn_benchmarks is understood, too.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/algorithm_range.h"

namespace rdmacoll {

struct AlgorithmRanges {
  std::vector<AlgorithmRange> ranges;  // by growing size; the last one has no end
  std::string note;                    // how words of another system are understood

  std::string text() const;  // in our own words, with sizes in bytes: "a:32768:b"
};

// Parses such a list. Empty if `text` is no such list.
std::optional<AlgorithmRanges> algorithm_ranges_from(std::string_view text);

// A sentence about the values that are allowed.
std::string allowed_algorithm_ranges();

}  // namespace rdmacoll
