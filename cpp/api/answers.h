// How functions of the C interface answer: a number, and the error as JSON.
#pragma once

#include <cstdint>
#include <string>

#include "base/clock.h"
#include "base/status.h"

namespace rdmacoll {

inline constexpr int kDone = 0, kTimeout = 1, kFailed = 2, kRefused = 3, kMoved = 4;

// The caller's, to be freed by text_free.
char* copy_text(const std::string& text);
int report(const Status& status, char** error, int code = kFailed);
// Of a timeout; negative: there is none.
Nanoseconds nanoseconds(int64_t milliseconds);

}  // namespace rdmacoll
