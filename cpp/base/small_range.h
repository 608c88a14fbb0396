// Searches in ranges that mostly have one or two elements, on the way of every small message. The
// standard algorithms are unrolled by four, which is measurably slower there.
#pragma once

namespace rdmacoll {

template <typename Range, typename Is>
bool is_any_of(const Range& range, Is is) {
  for (const auto& one : range) {
    if (is(one)) return true;
  }
  return false;
}

template <typename Range, typename Is>
bool are_all_of(const Range& range, Is is) {
  return !is_any_of(range, [&](const auto& one) { return !is(one); });
}

}  // namespace rdmacoll
