// A set of small numbers, for the steps that come before a step.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace rdmacoll {

class Bits {
 public:
  explicit Bits(std::size_t count) : words_((count + 63) / 64, 0) {}

  bool contains(std::size_t number) const { return words_[number / 64] >> (number % 64) & 1; }
  void add(std::size_t number) { words_[number / 64] |= uint64_t{1} << (number % 64); }
  // Adds all numbers of `other`, which may be made for fewer numbers.
  void add(const Bits& other) {
    for (std::size_t i = 0; i < other.words_.size(); ++i) words_[i] |= other.words_[i];
  }

 private:
  std::vector<uint64_t> words_;
};

}  // namespace rdmacoll
