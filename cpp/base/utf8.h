// Which bytes are text.
#pragma once

#include <cstddef>
#include <string_view>

namespace rdmacoll {

// The length of a well-formed UTF-8 sequence at the start of `text`, which is not empty, or 0: no
// overlong forms, no surrogates, nothing above U+10FFFF.
std::size_t utf8_length(std::string_view text);
bool is_utf8(std::string_view text);

}  // namespace rdmacoll
