// Questions about a few things, mostly one or two, on the way of every small message: the standard
// algorithms are unrolled by four, which costs three times as much there.
#pragma once

namespace rdmacoll {

template <typename Range, typename Is>
bool is_any_of(const Range& few, Is is) {
  for (const auto& one : few) {
    if (is(one)) return true;
  }
  return false;
}

template <typename Range, typename Is>
bool are_all_of(const Range& few, Is is) {
  return !is_any_of(few, [&](const auto& one) { return !is(one); });
}

}  // namespace rdmacoll
