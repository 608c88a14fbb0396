// How functions of the C interface answer.
#pragma once

#include <cstdlib>
#include <cstring>
#include <string>

#include "base/status.h"

namespace rdmacoll {

inline constexpr int kDone = 0, kTimeout = 1, kFailed = 2, kRefused = 3;

// The caller's: freed by text_free.
inline char* copy_text(const std::string& text) {
  auto* copy = static_cast<char*>(std::malloc(text.size() + 1));
  if (copy != nullptr) std::memcpy(copy, text.c_str(), text.size() + 1);
  return copy;
}

inline int report(const Status& status, char** error, int code = kFailed) {
  if (status.ok()) return kDone;
  if (status.is_busy()) return kTimeout;
  if (error != nullptr) *error = copy_text(status.to_json());
  return code;
}

}  // namespace rdmacoll
