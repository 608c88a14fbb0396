#include "memory/streaming.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <emmintrin.h>
#endif

namespace rdmacoll {

#if defined(__x86_64__)
namespace {

// A line that is not written as a whole goes to memory in several small pieces.
constexpr std::size_t kLine = 64;
constexpr std::size_t kWord = sizeof(__m128i);

}  // namespace

void stream(std::byte* to, const std::byte* from, std::size_t bytes) {
  if (bytes == 0) return;  // `from` may be null
  const std::size_t into_line = reinterpret_cast<std::uintptr_t>(to) % kLine;
  const std::size_t head = std::min(bytes, (kLine - into_line) % kLine);
  std::memcpy(to, from, head);
  std::size_t at = head;
  for (; bytes - at >= kLine; at += kLine) {
    for (std::size_t word = at; word < at + kLine; word += kWord) {
      const __m128i value = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + word));
      _mm_stream_si128(reinterpret_cast<__m128i*>(to + word), value);
    }
  }
  std::memcpy(to + at, from + at, bytes - at);
}

void end_streams() { _mm_sfence(); }
#else
// Other processors notice long writes themselves, and then fetch no lines.
void stream(std::byte* to, const std::byte* from, std::size_t bytes) {
  if (bytes > 0) std::memcpy(to, from, bytes);  // `from` may be null
}

void end_streams() {}
#endif

}  // namespace rdmacoll
