#include "tensorflow/error_text.h"

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "tensorflow/attributes.h"

namespace rdmacoll::tensorflow {
namespace {

void append_utf8(std::string& text, uint32_t code) {
  if (code < 0x80) {
    text += static_cast<char>(code);
  } else if (code < 0x800) {
    text += static_cast<char>(0xc0 | (code >> 6));
    text += static_cast<char>(0x80 | (code & 0x3f));
  } else {
    text += static_cast<char>(0xe0 | (code >> 12));
    text += static_cast<char>(0x80 | ((code >> 6) & 0x3f));
    text += static_cast<char>(0x80 | (code & 0x3f));
  }
}

uint32_t hex(std::string_view digits) {
  uint32_t value = 0;
  for (const char c : digits) {
    const int digit = c >= '0' && c <= '9' ? c - '0' : (c | 0x20) - 'a' + 10;
    value = value * 16 + static_cast<uint32_t>(digit & 15);
  }
  return value;
}

// Reads the string that begins at json[at] == '"'. Leaves `at` after its closing quote.
std::string read_string(std::string_view json, std::size_t& at) {
  std::string text;
  for (++at; at < json.size() && json[at] != '"'; ++at) {
    if (json[at] != '\\' || at + 1 == json.size()) {
      text += json[at];
      continue;
    }
    switch (const char escaped = json[++at]) {
      case 'n':
        text += '\n';
        break;
      case 't':
        text += '\t';
        break;
      case 'u':
        append_utf8(text, hex(json.substr(at + 1, 4)));
        at += 4;
        break;
      default:
        text += escaped;
    }
  }
  ++at;
  return text;
}

struct Member {
  std::string name;
  std::string_view value;  // unparsed text
};

// The members of the outermost object.
std::vector<Member> members_of(std::string_view json) {
  constexpr std::string_view kBlank = " \n\t";
  std::vector<Member> members;
  std::size_t at = json.find('"');
  while (at < json.size()) {
    std::string name = read_string(json, at);
    const std::size_t colon = json.find(':', at);
    const std::size_t begin = json.find_first_not_of(kBlank, std::min(colon, json.size() - 1) + 1);
    if (begin == json.npos) break;
    int depth = 0;
    for (at = begin; at < json.size(); ++at) {
      const char c = json[at];
      if (depth == 0 && (c == ',' || c == '}')) break;
      if (c == '{' || c == '[') ++depth;
      if (c == '}' || c == ']') --depth;
      if (c != '"') continue;
      read_string(json, at);
      --at;  // to its closing quote
    }
    const std::string_view value = json.substr(begin, at - begin);
    members.push_back({std::move(name), value.substr(0, value.find_last_not_of(kBlank) + 1)});
    at = json.find('"', at);
  }
  return members;
}

std::string escaped(std::string_view text) {
  std::string result;
  for (const char c : text) {
    if (c == '"' || c == '\\') result += '\\';
    result += c == '\n' ? ' ' : c;
  }
  return result;
}

// Lists the remaining members. The message is printed already, and empty members are left out.
std::string details_of(std::string_view json) {
  std::string details;
  for (const auto& [name, value] : members_of(json)) {
    const bool is_empty = value == "\"\"" || value == "[]" || value == "-1";
    if (name == "message" || is_empty) continue;
    details += details.empty() ? "\"" : ", \"";
    details.append(escaped(name)).append("\": ").append(value);
  }
  return "{" + details + "}";
}

// A string member of the outermost object, unescaped, or "" if there is none.
std::string json_member(std::string_view json, std::string_view name) {
  for (const Member& member : members_of(json)) {
    std::size_t at = 0;
    if (member.name == name && member.value.starts_with('"')) return read_string(member.value, at);
  }
  return "";
}

TF_Code code_of(std::string_view kind) {
  // The codes are Horovod's, which programs catch. TensorFlow's sessions take TF_ABORTED for a
  // preemption, after which they would start again.
  if (kind == "RankFailedError" || kind == "ShutdownError") return TF_UNKNOWN;
  if (kind == "ConfigError" || kind == "DuplicateNameError") return TF_INVALID_ARGUMENT;
  if (kind == "StalledError") return TF_DEADLINE_EXCEEDED;
  if (kind == "MismatchError" || kind == "NotInitializedError") return TF_FAILED_PRECONDITION;
  return TF_INTERNAL;
}

}  // namespace

void set_error(TF_Status* status, std::string_view json) {
  const std::string kind = json_member(json, "kind");
  const std::string text = (kind.empty() ? "RdmacollError" : kind) + ": " +
                           json_member(json, "message") + " [rdmacoll " + details_of(json) + "]";
  TF_SetStatus(status, code_of(kind), text.c_str());
}

void fail(TF_OpKernelContext* context, std::string_view json) {
  const OwnedStatus status(TF_NewStatus());
  set_error(status.get(), json);
  TF_OpKernelContext_Failure(context, status.get());
}

std::string error_json(std::string_view kind, std::string_view message) {
  return R"({"kind": ")" + escaped(kind) + R"(", "message": ")" + escaped(message) + R"("})";
}

}  // namespace rdmacoll::tensorflow
