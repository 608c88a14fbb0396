#include "sim/limit.h"

#include <functional>
#include <numeric>

namespace rdmacoll {
namespace {

constexpr uint64_t kTransfersOfSeedMax = 10'000;  // estimated, for all ranks
constexpr uint64_t kSegmentBytesMax = 4 << 20;

uint64_t bytes_of(const SimOperation& operation) {
  uint64_t rows = operation.rows.empty() ? 1 : 0;
  for (const auto& one : operation.rows) {
    rows += static_cast<uint64_t>(std::accumulate(one.begin(), one.end(), int64_t{0}));
  }
  uint64_t elements = 0;
  for (const auto& shape : operation.shapes) {
    elements += static_cast<uint64_t>(
        std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>()));
  }
  return rows * elements * size_of(operation.dtype);
}

}  // namespace

void limit_segments(SimScript& script) {
  const auto transfers = [&script] {
    uint64_t segments = 0;
    for (const auto& phase : script.phases) {
      for (const SimOperation& operation : phase) {
        segments += 1 + bytes_of(operation) / script.segment_bytes;
      }
    }
    return segments * static_cast<uint64_t>(script.ranks) * static_cast<uint64_t>(script.ranks);
  };
  while (transfers() > kTransfersOfSeedMax && script.segment_bytes < kSegmentBytesMax) {
    script.segment_bytes *= 4;
  }
}

}  // namespace rdmacoll
