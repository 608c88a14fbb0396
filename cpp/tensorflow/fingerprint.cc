// A hash of a variable's bytes, at the speed of memory. It runs four independent chains of FNV-1a
// over words of 8 bytes.
#include <array>
#include <cstddef>
#include <cstring>

#include "tensorflow/applied.h"

namespace {

constexpr uint64_t kBasis = 14695981039346656037u;
constexpr uint64_t kPrime = 1099511628211u;
constexpr std::size_t kChains = 4;

// The shift brings high bits down. A product alone only moves bits up.
uint64_t with(uint64_t hash, uint64_t word) {
  hash = (hash ^ word) * kPrime;
  return hash ^ (hash >> 29);
}

}  // namespace

uint64_t rc_tf_fingerprint(const void* data, uint64_t bytes) {
  const auto* at = static_cast<const unsigned char*>(data);
  std::array<uint64_t, kChains> chains = {kBasis, kBasis + 1, kBasis + 2, kBasis + 3};
  std::array<uint64_t, kChains> words{};
  uint64_t left = bytes;
  for (; left >= sizeof(words); left -= sizeof(words), at += sizeof(words)) {
    std::memcpy(words.data(), at, sizeof(words));
    for (std::size_t i = 0; i < kChains; ++i) chains[i] = with(chains[i], words[i]);
  }
  words = {};
  if (left > 0) std::memcpy(words.data(), at, left);
  uint64_t hash = with(kBasis, bytes);
  for (std::size_t i = 0; i < kChains; ++i) hash = with(hash, with(chains[i], words[i]));
  return hash;
}
