// A small JSON reader, for descriptions of machines.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace rdmacoll::cuda_sim {

struct Json {
  struct Member;
  enum class Kind { null, boolean, number, text, list, object };

  Kind kind = Kind::null;
  double number = 0;  // 1 and 0 for true and false
  std::string text;
  std::vector<Json> items;
  std::vector<Member> members;

  // Returns null if this is no object or has no such member.
  const Json* find(std::string_view name) const;
};

struct Json::Member {
  std::string name;
  Json value;
};

// Reads a document. Aborts with a sentence that names `origin` if the text is not JSON.
Json read_json(std::string_view text, const std::string& origin);

// Returns the text with quotes around it.
std::string quoted(std::string_view text);

}  // namespace rdmacoll::cuda_sim
