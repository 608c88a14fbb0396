// Memory that begins as zeros without being written: the system makes its pages when they are first
// touched. Large containers are thus made at once.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <new>
#include <type_traits>
#include <vector>

namespace rdmacoll {

template <typename T>
struct ZeroedAllocator {
  static_assert(std::is_trivial_v<T>);
  using value_type = T;

  ZeroedAllocator() = default;
  template <typename U>
  ZeroedAllocator(const ZeroedAllocator<U>&) {}

  T* allocate(std::size_t count) {
    void* const memory = std::calloc(count, sizeof(T));
    if (memory == nullptr) throw std::bad_alloc();
    return static_cast<T*>(memory);
  }
  void deallocate(T* memory, std::size_t) { std::free(memory); }
  // An element without a value is zero already.
  void construct(T*) {}
  bool operator==(const ZeroedAllocator&) const { return true; }
};

// A vector that is made with its size, or resized once. If it grows again, it may show old data.
template <typename T>
using Zeroed = std::vector<T, ZeroedAllocator<T>>;

}  // namespace rdmacoll
