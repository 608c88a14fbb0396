#include "engine/zeros.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

namespace rdmacoll {

Operation::Result Zeros::take(uint64_t bytes) {
  const auto is_better = [&](const Operation::Result& a, const Operation::Result& b) {
    return (a.bytes >= bytes) != (b.bytes >= bytes) ? a.bytes >= bytes : a.bytes < b.bytes;
  };
  Operation::Result zeros;
  const auto best = std::min_element(spare_.begin(), spare_.end(), is_better);
  if (best != spare_.end()) {
    zeros = std::move(*best);
    spare_.erase(best);
  }
  if (zeros.memory != nullptr && zeros.bytes >= bytes) {
    std::memset(zeros.memory.get(), 0, bytes);
    return zeros;
  }
  zeros.memory.reset();
  zeros.bytes = bytes;
  zeros.memory.reset(new (std::nothrow) std::byte[bytes]());
  return zeros;
}

void Zeros::give_back(Operation::Result zeros) {
  if (spare_.size() < spare_max_) spare_.push_back(std::move(zeros));
}

}  // namespace rdmacoll
