// Recognizes UTF-8.
#pragma once

#include <cstddef>
#include <string_view>

namespace rdmacoll {

// Returns the length of the well-formed UTF-8 sequence at the start of `text`, which is not empty,
// or 0. Overlong forms, surrogates and values above U+10FFFF are not well-formed.
std::size_t utf8_length(std::string_view text);
bool is_utf8(std::string_view text);

}  // namespace rdmacoll
