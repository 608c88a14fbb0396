#include "base/text.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <limits>
#include <utility>

#include "base/utf8.h"

namespace rdmacoll {

std::string bytes_text(uint64_t bytes) {
  static constexpr std::array<std::string_view, 4> kUnits = {"TiB", "GiB", "MiB", "KiB"};
  for (std::size_t i = 0; i < kUnits.size(); ++i) {
    const uint64_t unit = uint64_t{1} << (40 - 10 * i);
    if (bytes >= unit && bytes % unit == 0) return cat(bytes / unit, " ", kUnits[i]);
  }
  return cat(bytes, " B");
}

std::optional<uint64_t> bytes_from(std::string_view text) {
  uint64_t bytes = 0;
  const char* end = text.data() + text.size();
  const auto [rest, problem] = std::from_chars(text.data(), end, bytes);
  if (problem != std::errc()) return std::nullopt;
  std::string suffix = lower(trim({rest, static_cast<std::size_t>(end - rest)}));
  if (suffix.empty()) return bytes;
  if (suffix.size() == 3 && suffix.ends_with("ib")) suffix.resize(1);
  constexpr std::string_view kLetters = "bkmgt";
  const auto power = kLetters.find(suffix);
  if (suffix.size() != 1 || power == std::string_view::npos) return std::nullopt;
  const unsigned shift = static_cast<unsigned>(power) * 10;
  if (bytes > std::numeric_limits<uint64_t>::max() >> shift) return std::nullopt;
  return bytes << shift;
}

std::string lower(std::string_view text) {
  std::string result(text);
  std::transform(result.begin(), result.end(), result.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return result;
}

std::string_view trim(std::string_view text) {
  constexpr std::string_view kBlank = " \t\r\n";
  const auto first = text.find_first_not_of(kBlank);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kBlank) - first + 1);
}

std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = std::exchange(row[0], i);
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t change = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = std::exchange(row[j], std::min({row[j] + 1, row[j - 1] + 1, change}));
    }
  }
  return row[b.size()];
}

std::string json_quote(std::string_view text) {
  static constexpr char kHex[] = "0123456789abcdef";
  std::string quoted = "\"";
  while (!text.empty()) {
    const std::size_t length = utf8_length(text);
    const char c = text[0];
    if (length == 0) {
      quoted += "\\ufffd";  // a tensor label may have any bytes, JSON may not
    } else if (length > 1) {
      quoted += text.substr(0, length);
    } else if (c == '"' || c == '\\') {
      quoted += '\\';
      quoted += c;
    } else if (c == '\n') {
      quoted += "\\n";
    } else if (c == '\t') {
      quoted += "\\t";
    } else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F) {
      quoted += "\\u00";
      quoted += kHex[static_cast<unsigned char>(c) >> 4];
      quoted += kHex[c & 15];
    } else {
      quoted += c;
    }
    text.remove_prefix(length == 0 ? 1 : length);
  }
  quoted += '"';
  return quoted;
}

}  // namespace rdmacoll
