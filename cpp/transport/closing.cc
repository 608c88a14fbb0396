#include "transport/closing.h"

#include <cerrno>

#include "base/system_error.h"

namespace rdmacoll {

std::string closing_cause(int error) {
  if (error == 0 || error == EPIPE) return "closed its connection (the process ended, or left)";
  return error_text(error);
}

}  // namespace rdmacoll
