// SHA-256 (FIPS 180-4), HMAC (RFC 2104) and other needs of a handshake. They are written here,
// since the library may not depend on another one that a node might lack.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace rdmacoll {

using Digest = std::array<std::byte, 32>;

class Sha256 {
 public:
  Sha256& add(std::span<const std::byte> bytes);
  Sha256& add(std::string_view text) { return add(std::as_bytes(std::span(text))); }
  Digest finish();

 private:
  void compress(const std::byte* block);

  std::array<uint32_t, 8> state_ = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                    0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::array<std::byte, 64> block_{};
  std::size_t filled_ = 0;
  uint64_t total_ = 0;
};

// The keyed digest of the concatenation of `parts`.
Digest hmac_sha256(std::span<const std::byte> key,
                   std::initializer_list<std::span<const std::byte>> parts);

// Takes the same time, wherever the first difference is.
bool equal_in_constant_time(std::span<const std::byte> a, std::span<const std::byte> b);

// Fills all of `bytes` with unpredictable bytes from the kernel.
void fill_random(std::span<std::byte> bytes);

}  // namespace rdmacoll
