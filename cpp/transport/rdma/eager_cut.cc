#include "transport/rdma/eager_cut.h"

#include <bit>
#include <cstring>
#include <vector>

namespace rdmacoll::rdma {
namespace {

constexpr int kCopies = 8;

}  // namespace

uint32_t eager_cut(Nanoseconds way, double copy_speed, uint32_t most) {
  const double bytes = static_cast<double>(way) * copy_speed / 2;
  const auto even = static_cast<uint32_t>(std::clamp<double>(bytes, 1, kEagerBytesMax));
  return std::min(std::max(std::bit_floor(even), kEagerBytesMin), most);
}

double measure_copy_speed(const Clock& clock) {
  std::vector<std::byte> from(kEagerBytesMax), to(kEagerBytesMax);
  Nanoseconds best = kNever;
  for (int i = 0; i < kCopies; ++i) {
    const Nanoseconds begin = clock.now();
    std::memcpy(to.data(), from.data(), to.size());
    from.front() = to.back();  // so that the compiler cannot omit a copy
    best = std::min(best, clock.now() - begin);
  }
  return static_cast<double>(kEagerBytesMax) / static_cast<double>(std::max<Nanoseconds>(best, 1));
}

}  // namespace rdmacoll::rdma
