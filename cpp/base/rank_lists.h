// Several lists of ranks in their written form: "0,2;1,3".
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace rdmacoll {

// Parses lists of ascending ranks. Returns false if they are not. `written`: their canonical form,
// or "none".
bool parse_process_sets(std::string_view text, std::vector<std::vector<int>>& lists,
                        std::string& written);

}  // namespace rdmacoll
