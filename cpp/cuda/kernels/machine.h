// Memory and bits, as a GPU and as a processor have them.
#pragma once

#include "cuda/kernels/parameters.h"

#if defined(__CUDACC__)
#define RC_INLINE __device__ __forceinline__
#define RC_UNROLL _Pragma("unroll")
#define RC_ROLL _Pragma("unroll 1")
#else
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "compute/narrow_floats.h"
#define RC_INLINE inline
#define RC_UNROLL
#define RC_ROLL
#endif

namespace rdmacoll::cuda {

// A block, and a thread of it.
struct Thread {
  unsigned block;
  unsigned blocks;
  unsigned thread;
};

#if defined(__CUDACC__)

RC_INLINE unsigned bits_of(float value) { return __float_as_uint(value); }
RC_INLINE Word bits_of(double value) { return static_cast<Word>(__double_as_longlong(value)); }
RC_INLINE float real_of(unsigned bits) { return __uint_as_float(bits); }
RC_INLINE double real_of(Word bits) { return __longlong_as_double(static_cast<long long>(bits)); }

// Capability 3.5 has conversions of halves, but not their sums.
RC_INLINE float half_to_float(unsigned short raw) {
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(raw));
  return value;
}
RC_INLINE unsigned short float_to_half(float value) {
  unsigned short raw;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(raw) : "f"(value));
  return raw;
}

// The address space is said, since a compiler cannot know it of an address in a table. Loads are
// not volatile: no other thread writes what a thread reads.
RC_INLINE void load_words(Word address, unsigned (&words)[4]) {
  asm("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
      : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
      : "l"(address));
}
RC_INLINE void load_words(Word address, unsigned (&words)[2]) {
  asm("ld.global.v2.u32 {%0, %1}, [%2];" : "=r"(words[0]), "=r"(words[1]) : "l"(address));
}
RC_INLINE void load_words(Word address, unsigned (&words)[1]) {
  asm("ld.global.u32 %0, [%1];" : "=r"(words[0]) : "l"(address));
}
// A word that nobody writes while the kernel runs.
RC_INLINE Word load_constant(Word address) {
  Word word;
  asm("ld.global.nc.u64 %0, [%1];" : "=l"(word) : "l"(address));
  return word;
}
RC_INLINE void load_raw(Word address, unsigned short& raw) {
  asm("ld.global.u16 %0, [%1];" : "=h"(raw) : "l"(address));
}
RC_INLINE void load_raw(Word address, unsigned char& raw) {
  unsigned short wide;
  asm("ld.global.u8 %0, [%1];" : "=h"(wide) : "l"(address));
  raw = static_cast<unsigned char>(wide);
}
RC_INLINE void store_words(Word address, const unsigned (&words)[4]) {
  asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(address), "r"(words[0]),
               "r"(words[1]), "r"(words[2]), "r"(words[3]));
}
RC_INLINE void store_words(Word address, const unsigned (&words)[2]) {
  asm volatile("st.global.v2.u32 [%0], {%1, %2};" ::"l"(address), "r"(words[0]), "r"(words[1]));
}
RC_INLINE void store_words(Word address, const unsigned (&words)[1]) {
  asm volatile("st.global.u32 [%0], %1;" ::"l"(address), "r"(words[0]));
}
RC_INLINE void store_raw(Word address, unsigned short raw) {
  asm volatile("st.global.u16 [%0], %1;" ::"l"(address), "h"(raw));
}
RC_INLINE void store_raw(Word address, unsigned char raw) {
  asm volatile("st.global.u8 [%0], %1;" ::"l"(address), "h"(static_cast<unsigned short>(raw)));
}

#else

RC_INLINE unsigned bits_of(float value) { return bits<unsigned>(value); }
RC_INLINE Word bits_of(double value) { return bits<Word>(value); }
RC_INLINE float real_of(unsigned word) { return bits<float>(word); }
RC_INLINE double real_of(Word word) { return bits<double>(word); }

RC_INLINE float half_to_float(unsigned short raw) { return widened(Half{raw}); }
RC_INLINE unsigned short float_to_half(float value) {
  Half half{};
  narrow(value, half);
  return half.raw;
}

// An access of a GPU faults if its address is no multiple of its size.
template <typename T>
RC_INLINE T* aligned(Word address, std::size_t bytes) {
  if (address % bytes != 0) {
    std::fprintf(stderr, "a kernel accesses %zu bytes at address %llx, which is not aligned\n",
                 bytes, address);
    std::abort();
  }
  return reinterpret_cast<T*>(static_cast<std::uintptr_t>(address));
}
template <unsigned n>
RC_INLINE void load_words(Word address, unsigned (&words)[n]) {
  std::memcpy(words, aligned<void>(address, sizeof words), sizeof words);
}
RC_INLINE Word load_constant(Word address) { return *aligned<const Word>(address, sizeof(Word)); }
template <unsigned n>
RC_INLINE void store_words(Word address, const unsigned (&words)[n]) {
  std::memcpy(aligned<void>(address, sizeof words), words, sizeof words);
}
template <typename Raw>
RC_INLINE void load_raw(Word address, Raw& raw) {
  std::memcpy(&raw, aligned<void>(address, sizeof raw), sizeof raw);
}
template <typename Raw>
RC_INLINE void store_raw(Word address, Raw raw) {
  std::memcpy(aligned<void>(address, sizeof raw), &raw, sizeof raw);
}

#endif

// Loads and stores `n` elements of an unsigned type, whose address is a multiple of their size (of
// 16 bytes if they are more).
template <unsigned n, typename Raw>
RC_INLINE void load(Word address, Raw (&raw)[n]) {
  constexpr unsigned kBytes = n * sizeof(Raw);
  if constexpr (kBytes < 4) {
    static_assert(n == 1);
    load_raw(address, raw[0]);
  } else {
    constexpr unsigned kWords = kBytes < 16 ? kBytes / 4 : 4;
    constexpr unsigned kEach = kWords * 4 / sizeof(Raw);
    RC_UNROLL
    for (unsigned done = 0; done < n; done += kEach) {
      unsigned words[kWords];
      load_words(address + done * sizeof(Raw), words);
      RC_UNROLL
      for (unsigned i = 0; i < kEach; ++i) {
        if constexpr (sizeof(Raw) == 8) {
          raw[done + i] = words[2 * i] | static_cast<Word>(words[2 * i + 1]) << 32;
        } else {
          constexpr unsigned kOf = 4 / sizeof(Raw);  // elements of a word
          raw[done + i] = static_cast<Raw>(words[i / kOf] >> (i % kOf * 8 * sizeof(Raw)));
        }
      }
    }
  }
}

template <unsigned n, typename Raw>
RC_INLINE void store(Word address, const Raw (&raw)[n]) {
  constexpr unsigned kBytes = n * sizeof(Raw);
  if constexpr (kBytes < 4) {
    static_assert(n == 1);
    store_raw(address, raw[0]);
  } else {
    constexpr unsigned kWords = kBytes < 16 ? kBytes / 4 : 4;
    constexpr unsigned kEach = kWords * 4 / sizeof(Raw);
    RC_UNROLL
    for (unsigned done = 0; done < n; done += kEach) {
      unsigned words[kWords] = {};
      RC_UNROLL
      for (unsigned i = 0; i < kEach; ++i) {
        if constexpr (sizeof(Raw) == 8) {
          words[2 * i] = static_cast<unsigned>(raw[done + i]);
          words[2 * i + 1] = static_cast<unsigned>(raw[done + i] >> 32);
        } else {
          constexpr unsigned kOf = 4 / sizeof(Raw);
          words[i / kOf] |= static_cast<unsigned>(raw[done + i]) << (i % kOf * 8 * sizeof(Raw));
        }
      }
      store_words(address + done * sizeof(Raw), words);
    }
  }
}

// One element at any address.
template <typename Raw>
RC_INLINE void load_bytes(Word address, Raw& raw) {
  raw = 0;
  for (unsigned i = 0; i < sizeof(Raw); ++i) {
    unsigned char byte;
    load_raw(address + i, byte);
    raw = static_cast<Raw>(raw | static_cast<Raw>(byte) << (8 * i));
  }
}
template <typename Raw>
RC_INLINE void store_bytes(Word address, Raw raw) {
  for (unsigned i = 0; i < sizeof(Raw); ++i) {
    store_raw(address + i, static_cast<unsigned char>(raw >> (8 * i)));
  }
}

}  // namespace rdmacoll::cuda
