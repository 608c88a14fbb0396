// Reads JSON that this version of the code wrote, on another rank or into a file.
#pragma once

#include <charconv>
#include <string>
#include <string_view>

namespace rdmacoll {

// Each call reads the next part of the text. After the first unexpected letter it is !ok() and
// yields nothing.
class JsonScanner {
 public:
  explicit JsonScanner(std::string_view text) : rest_(text) {}

  bool ok() const { return ok_; }
  bool at_end() const { return ok_ && rest_.empty(); }
  bool next_is(char c) const { return ok_ && !rest_.empty() && rest_[0] == c; }
  void fail() {
    ok_ = false;
    rest_ = {};
  }

  JsonScanner& expect(std::string_view literal) {
    if (!rest_.starts_with(literal)) {
      fail();
    } else {
      rest_.remove_prefix(literal.size());
    }
    return *this;
  }

  template <typename T>
  T number() {
    T value{};
    const auto [end, error] = std::from_chars(rest_.data(), rest_.data() + rest_.size(), value);
    if (error != std::errc()) {
      fail();
      return T{};
    }
    rest_.remove_prefix(static_cast<std::size_t>(end - rest_.data()));
    return value;
  }

  bool flag() {
    const auto value = number<int>();
    if (value != 0 && value != 1) fail();
    return value == 1;
  }

  std::string text() {
    std::string value;
    expect("\"");
    while (ok_ && !next_is('"')) {
      if (rest_.empty() || static_cast<unsigned char>(rest_[0]) < 0x20 ||
          value.size() >= kTextBytesMax) {
        fail();
      } else if (rest_[0] == '\\') {
        value += escaped();
      } else {
        value += rest_[0];
        rest_.remove_prefix(1);
      }
    }
    expect("\"");
    return ok_ ? value : "";
  }

  // Calls `item` for each of [a,b,...] or {a,b,...}.
  template <typename Item>
  void list(std::string_view brackets, std::size_t max, Item item) {
    expect(brackets.substr(0, 1));
    for (std::size_t count = 0; ok_ && !next_is(brackets[1]); ++count) {
      if (count > 0) expect(",");
      if (count >= max) fail();
      item();
    }
    expect(brackets.substr(1, 1));
  }

 private:
  static constexpr std::size_t kTextBytesMax = 4096;

  std::string escaped() {
    static constexpr std::string_view kShort = "\"\\/bfnrt";
    static constexpr std::string_view kMeaning = "\"\\/\b\f\n\r\t";
    const char kind = rest_.size() > 1 ? rest_[1] : '\0';
    if (const std::size_t at = kShort.find(kind); kind != '\0' && at != kShort.npos) {
      rest_.remove_prefix(2);
      return std::string(1, kMeaning[at]);
    }
    unsigned value = 0;
    if (kind == 'u' && rest_.size() >= 6) {
      const auto [end, error] = std::from_chars(rest_.data() + 2, rest_.data() + 6, value, 16);
      if (error == std::errc() && end == rest_.data() + 6) {
        rest_.remove_prefix(6);
        if (value < 0x80) return std::string(1, static_cast<char>(value));
        if (value == 0xfffd) return "\xef\xbf\xbd";
      }
    }
    fail();
    return "";
  }

  std::string_view rest_;
  bool ok_ = true;
};

}  // namespace rdmacoll
