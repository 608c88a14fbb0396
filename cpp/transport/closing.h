// Names the reason why a connection ended, for a person.
#pragma once

#include <string>

namespace rdmacoll {

// `error`: errno of the failed call, or 0 for an orderly end.
std::string closing_cause(int error);

}  // namespace rdmacoll
