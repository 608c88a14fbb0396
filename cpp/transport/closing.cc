#include "transport/closing.h"

#include <cctype>
#include <cerrno>
#include <system_error>

namespace rdmacoll {

std::string closing_cause(int error) {
  if (error == 0 || error == EPIPE) return "closed its connection (the process ended, or left)";
  std::string text = std::generic_category().message(error);
  if (!text.empty()) {
    text[0] = static_cast<char>(std::tolower(static_cast<unsigned char>(text[0])));
  }
  return text;
}

}  // namespace rdmacoll
