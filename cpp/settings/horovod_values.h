// Values of Horovod's variables that are aliases of settings, in the words of the settings.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace rdmacoll {

// The value that `text` of a variable has as a value of the setting. Returns nullopt if the text
// leaves the setting as it is. Variables of others, and all other texts, are returned unchanged.
std::optional<std::string> value_from_horovod(std::string_view variable, std::string_view text);

// The values that the variable takes, for error messages. Returns "" if they are the setting's.
std::string_view allowed_by_horovod(std::string_view variable);

}  // namespace rdmacoll
