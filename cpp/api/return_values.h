// Return values of the C interface: a number, and the error as JSON.
#pragma once

#include <cstdint>
#include <string>

#include "base/clock.h"
#include "base/status.h"

namespace rdmacoll {

inline constexpr int kDone = 0, kTimeout = 1, kFailed = 2, kRefused = 3, kMoved = 4;

// Copies the text for the caller. The caller frees it with text_free.
char* copy_text(const std::string& text);
int report(const Status& status, char** error, int code = kFailed);
// Converts a timeout. Negative values mean no limit.
Nanoseconds nanoseconds(int64_t milliseconds);

}  // namespace rdmacoll
