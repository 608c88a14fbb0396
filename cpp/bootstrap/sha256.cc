#include "bootstrap/sha256.h"

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>

#include "base/kernel_calls.h"
#include "base/status.h"

namespace rdmacoll {
namespace {

constexpr std::size_t kBlockBytes = 64;

// The first 32 bits of the fractional parts of the cube roots of the first 64 primes.
constexpr std::array<uint32_t, 64> kRound = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

uint32_t big_endian(const std::byte* bytes) {
  uint32_t value;
  std::memcpy(&value, bytes, sizeof value);
  return __builtin_bswap32(value);
}

}  // namespace

void Sha256::compress(const std::byte* block) {
  std::array<uint32_t, 64> w;
  for (int t = 0; t < 16; ++t) w[t] = big_endian(block + 4 * t);
  for (int t = 16; t < 64; ++t) {
    const uint32_t s0 = std::rotr(w[t - 15], 7) ^ std::rotr(w[t - 15], 18) ^ (w[t - 15] >> 3);
    const uint32_t s1 = std::rotr(w[t - 2], 17) ^ std::rotr(w[t - 2], 19) ^ (w[t - 2] >> 10);
    w[t] = w[t - 16] + s0 + w[t - 7] + s1;
  }
  auto [a, b, c, d, e, f, g, h] = state_;
  for (int t = 0; t < 64; ++t) {
    const uint32_t big1 = std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25);
    const uint32_t choice = (e & f) ^ (~e & g);
    const uint32_t first = h + big1 + choice + kRound[t] + w[t];
    const uint32_t big0 = std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22);
    const uint32_t majority = (a & b) ^ (a & c) ^ (b & c);
    h = g;
    g = f;
    f = e;
    e = d + first;
    d = c;
    c = b;
    b = a;
    a = first + big0 + majority;
  }
  const std::array<uint32_t, 8> after = {a, b, c, d, e, f, g, h};
  for (std::size_t i = 0; i < after.size(); ++i) state_[i] += after[i];
}

Sha256& Sha256::add(std::span<const std::byte> bytes) {
  total_ += bytes.size();
  while (!bytes.empty()) {
    const std::size_t count = std::min(bytes.size(), kBlockBytes - filled_);
    std::memcpy(block_.data() + filled_, bytes.data(), count);
    filled_ += count;
    bytes = bytes.subspan(count);
    if (filled_ == kBlockBytes) {
      compress(block_.data());
      filled_ = 0;
    }
  }
  return *this;
}

Digest Sha256::finish() {
  const uint64_t bits = __builtin_bswap64(total_ * 8);
  constexpr std::byte kEnd{0x80};
  constexpr std::byte kZero{0};
  add({&kEnd, 1});
  while (filled_ != kBlockBytes - sizeof bits) add({&kZero, 1});
  add(std::as_bytes(std::span(&bits, 1)));
  Digest digest;
  for (std::size_t i = 0; i < state_.size(); ++i) {
    const uint32_t word = __builtin_bswap32(state_[i]);
    std::memcpy(digest.data() + 4 * i, &word, sizeof word);
  }
  return digest;
}

Digest hmac_sha256(std::span<const std::byte> key,
                   std::initializer_list<std::span<const std::byte>> parts) {
  std::array<std::byte, kBlockBytes> inner{};
  if (key.size() > kBlockBytes) {
    const Digest short_key = Sha256().add(key).finish();
    std::copy(short_key.begin(), short_key.end(), inner.begin());
  } else {
    std::copy(key.begin(), key.end(), inner.begin());
  }
  std::array<std::byte, kBlockBytes> outer = inner;
  for (std::byte& byte : inner) byte ^= std::byte{0x36};
  for (std::byte& byte : outer) byte ^= std::byte{0x5c};
  Sha256 hash;
  hash.add(inner);
  for (const auto& part : parts) hash.add(part);
  return Sha256().add(outer).add(hash.finish()).finish();
}

bool equal_in_constant_time(std::span<const std::byte> a, std::span<const std::byte> b) {
  if (a.size() != b.size()) return false;
  std::byte difference{0};
  for (std::size_t i = 0; i < a.size(); ++i) difference |= a[i] ^ b[i];
  return difference == std::byte{0};
}

void fill_random(std::span<std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t count = get_random(bytes.data(), bytes.size());
    RC_ASSERT(count > 0 || errno == EINTR, "getrandom");  // the kernel always has random bytes
    if (count > 0) bytes = bytes.subspan(static_cast<std::size_t>(count));
  }
}

}  // namespace rdmacoll
