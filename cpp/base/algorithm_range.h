// An algorithm that is forced for sizes.
#pragma once

#include <cstdint>
#include <string>

namespace rdmacoll {

struct AlgorithmRange {
  std::string algorithm;  // as in the table of algorithms, or "auto"
  uint64_t bytes_max = UINT64_MAX;

  bool operator==(const AlgorithmRange&) const = default;
};

}  // namespace rdmacoll
