// Several lists of ranks as a person writes them: "0,2;1,3".
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace rdmacoll {

// False: not lists of ascending ranks. `written`: how they are always written; without any, "none".
bool parse_process_sets(std::string_view text, std::vector<std::vector<int>>& lists,
                        std::string& written);

}  // namespace rdmacoll
