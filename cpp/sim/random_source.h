// Random sources of a seed. Each stream is independent, so a new draw in one does not shift
// another.
#pragma once

#include <array>
#include <cstdint>
#include <random>

namespace rdmacoll {

class RandomSource {
 public:
  explicit RandomSource(uint64_t seed, uint64_t stream = 1)
      : random_(seed * 0x9e3779b97f4a7c15ull + stream) {}

  int64_t between(int64_t least, int64_t most) {
    return std::uniform_int_distribution<int64_t>(least, most)(random_);
  }
  bool chance(double share) { return std::uniform_real_distribution<>(0, 1)(random_) < share; }
  template <typename T, std::size_t n>
  T one_of(const std::array<T, n>& values) {
    return values[static_cast<std::size_t>(between(0, n - 1))];
  }

 private:
  std::mt19937_64 random_;
};

}  // namespace rdmacoll
