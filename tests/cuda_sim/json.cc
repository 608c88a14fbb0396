#include "cuda_sim/json.h"

#include <cctype>
#include <cstdio>
#include <cstdlib>
#include <utility>

namespace rdmacoll::cuda_sim {
namespace {

class JsonReader {
 public:
  JsonReader(std::string_view text, const std::string& origin) : text_(text), origin_(origin) {}

  Json document() {
    Json value = read_value();
    if (next() != '\0') fail("more text after the end");
    return value;
  }

 private:
  [[noreturn]] void fail(const char* reason) const {
    std::fprintf(stderr, "cuda_sim: %s is not valid JSON at byte %zu: %s\n", origin_.c_str(), at_,
                 reason);
    std::abort();
  }

  // Returns the next character that is no space, or 0 at the end.
  char next() {
    while (at_ < text_.size() && std::isspace(static_cast<unsigned char>(text_[at_]))) ++at_;
    return at_ < text_.size() ? text_[at_] : '\0';
  }

  bool skip(char expected) {
    if (next() != expected) return false;
    ++at_;
    return true;
  }

  bool skip_word(std::string_view word) {
    if (text_.substr(at_, word.size()) != word) return false;
    at_ += word.size();
    return true;
  }

  Json read_value() {
    Json value;
    const char first = next();
    if (first == '{') {
      value.kind = Json::Kind::object;
      read_members(value);
    } else if (first == '[') {
      value.kind = Json::Kind::list;
      read_items(value);
    } else if (first == '"') {
      value.kind = Json::Kind::text;
      value.text = read_text();
    } else if (skip_word("true") || skip_word("false")) {
      value.kind = Json::Kind::boolean;
      value.number = first == 't';
    } else if (!skip_word("null")) {
      value.kind = Json::Kind::number;
      value.number = read_number();
    }
    return value;
  }

  void read_members(Json& object) {
    ++at_;
    if (skip('}')) return;
    do {
      if (next() != '"') fail("a member has no name");
      std::string name = read_text();
      if (!skip(':')) fail("a colon is missing");
      object.members.push_back({std::move(name), read_value()});
    } while (skip(','));
    if (!skip('}')) fail("an object does not end");
  }

  void read_items(Json& list) {
    ++at_;
    if (skip(']')) return;
    do {
      list.items.push_back(read_value());
    } while (skip(','));
    if (!skip(']')) fail("a list does not end");
  }

  std::string read_text() {
    std::string result;
    for (++at_; at_ < text_.size() && text_[at_] != '"'; ++at_) {
      if (text_[at_] == '\\') ++at_;
      if (at_ < text_.size()) result += text_[at_];
    }
    if (!skip('"')) fail("a string does not end");
    return result;
  }

  double read_number() {
    const std::string rest(text_.substr(at_, 40));
    char* end = nullptr;
    const double number = std::strtod(rest.c_str(), &end);
    if (end == rest.c_str()) fail("a value is missing");
    at_ += static_cast<std::size_t>(end - rest.c_str());
    return number;
  }

  const std::string_view text_;
  const std::string& origin_;
  std::size_t at_ = 0;
};

}  // namespace

const Json* Json::find(std::string_view name) const {
  for (const auto& [key, value] : members) {
    if (key == name) return &value;
  }
  return nullptr;
}

Json read_json(std::string_view text, const std::string& origin) {
  return JsonReader(text, origin).document();
}

std::string quoted(std::string_view text) {
  std::string result = "\"";
  for (const char one : text) {
    if (one == '"' || one == '\\') result += '\\';
    result += one == '\n' ? ' ' : one;
  }
  return result + '"';
}

}  // namespace rdmacoll::cuda_sim
