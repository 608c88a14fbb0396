#include "api/return_values.h"

#include <cstdlib>
#include <cstring>

namespace rdmacoll {

char* copy_text(const std::string& text) {
  auto* copy = static_cast<char*>(std::malloc(text.size() + 1));
  if (copy != nullptr) std::memcpy(copy, text.c_str(), text.size() + 1);
  return copy;
}

int report(const Status& status, char** error, int code) {
  if (status.ok()) return kDone;
  if (status.is_busy()) return kTimeout;
  if (error != nullptr) *error = copy_text(status.to_json());
  return code;
}

Nanoseconds nanoseconds(int64_t milliseconds) {
  return milliseconds < 0 ? kNever : milliseconds * kMillisecond;
}

}  // namespace rdmacoll
