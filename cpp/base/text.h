// Small text helpers; C++20's std::format is not in the oldest compiler that we support.
#pragma once

#include <cstdint>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

namespace rdmacoll {

// cat("rank ", 3, " of ", 8) == "rank 3 of 8"
template <typename... Values>
std::string cat(const Values&... values) {
  std::ostringstream stream;
  (stream << ... << values);
  return stream.str();
}

// join({1, 2, 5}, ", ") == "1, 2, 5"
template <typename Range>
std::string join(const Range& values, std::string_view separator) {
  std::ostringstream stream;
  bool first = true;
  for (const auto& value : values) {
    if (!first) stream << separator;
    stream << value;
    first = false;
  }
  return stream.str();
}

// 4194304 -> "4 MiB", 1500 -> "1500 B"
std::string bytes_text(uint64_t bytes);

// "4194304", "4096K", "4MiB", "64b": a unit is a power of 1024, in words as in letters.
std::optional<uint64_t> bytes_from(std::string_view text);

std::string lower(std::string_view text);
std::string_view trim(std::string_view text);  // without blanks at its ends

// How many letters are changed, added or left out from one to the other.
std::size_t edit_distance(std::string_view a, std::string_view b);

// A JSON string literal with its quotes.
std::string json_quote(std::string_view text);

}  // namespace rdmacoll
