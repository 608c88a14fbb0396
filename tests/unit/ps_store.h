// Stores of one small variable, for tests.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "ps/store.h"

namespace rdmacoll::ps {

inline constexpr uint64_t kRows = 9, kColumns = 5, kElements = kRows * kColumns;
inline constexpr uint64_t kPlenty = 1u << 20;

template <typename T>
std::span<const std::byte> bytes_of(const std::vector<T>& values) {
  return std::as_bytes(std::span(values));
}

inline Store store_of(const std::string& rule, const StoredSpec& spec) {
  Store store;
  EXPECT_TRUE(store.declare(rule, 0, {&spec, 1}).ok());
  uint64_t left = kPlenty;
  EXPECT_TRUE(store.fill(left));
  return store;
}

inline std::vector<float> values_of(Store& store) {
  std::vector<float> values(kElements);
  uint64_t row = 0, left = kPlenty;
  EXPECT_TRUE(store.catch_up(0, store.updates(0), row, left));
  const auto stored = store.stored(0, 0, 0, kElements * sizeof(float));
  std::memcpy(values.data(), stored.data(), stored.size());
  return values;
}

inline const StoredSpec kDense{"w", Dtype::float32, true, kElements, 0, {9, 5}};
inline const StoredSpec kByRows{"w", Dtype::float32, true, kElements, kColumns, {9, 5}};

}  // namespace rdmacoll::ps
