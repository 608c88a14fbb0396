// The algorithms that are forced for sizes: "recursive_doubling:32k:ring" is the first one up to 32
// KiB and the second one above. The all_reduce_spec of tf_cnn_benchmarks is understood, too.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace rdmacoll {

struct AlgorithmRange {
  std::string algorithm;  // as in the table of algorithms, or "auto"
  uint64_t bytes_max = UINT64_MAX;

  bool operator==(const AlgorithmRange&) const = default;
};

struct AlgorithmRanges {
  std::vector<AlgorithmRange> ranges;  // by growing size; the last one has no end
  std::string note;                    // how words of another system are understood

  std::string text() const;  // in our own words: "recursive_doubling:32768:ring"
};

// Parses such a list. Empty if `text` is no such list.
std::optional<AlgorithmRanges> algorithm_ranges_from(std::string_view text);

}  // namespace rdmacoll
