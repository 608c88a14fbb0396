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

// Parses "4194304", "4096K", "4MiB" or "64b". K and KiB both mean 1024, and so on.
std::optional<uint64_t> bytes_from(std::string_view text);

std::string lower(std::string_view text);
std::string_view trim(std::string_view text);  // without blanks at its ends

// The number of letters to change, add or remove to get from one text to the other.
std::size_t edit_distance(std::string_view a, std::string_view b);

// A JSON string literal with its quotes.
std::string json_quote(std::string_view text);

}  // namespace rdmacoll
