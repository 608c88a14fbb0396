// FNV-1a (Fowler, Noll, Vo) over words of 8 bytes. It detects accidents, not attacks.
#pragma once

#include <cstdint>

namespace rdmacoll::ps {

inline constexpr uint64_t kFnvBasis = 14695981039346656037u;

constexpr uint64_t fnv_with(uint64_t hash, uint64_t word) { return (hash ^ word) * 1099511628211u; }

}  // namespace rdmacoll::ps
