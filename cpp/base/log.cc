#include "base/log.h"

#include <unistd.h>

#include <algorithm>
#include <array>

#include "base/text.h"

namespace rdmacoll {

void Log::write(LogLevel level, std::string_view text) const {
  static constexpr std::array<std::string_view, 4> kPrefixes = {
      "error: ", "warning: ", "info: ", "debug: "};
  if (!enabled(level)) return;
  write_line(kPrefixes[std::min<std::size_t>(static_cast<std::size_t>(level), 3)], text);
}

void Log::write_line(std::string_view prefix, std::string_view text) const {
  std::string line = rank_ < 0 ? "[rdmacoll] " : cat("[rdmacoll rank ", rank_, "] ");
  line += prefix;
  const std::size_t body = line.size();
  line += text;
  // One fact is one line, even if a name from outside has line breaks.
  std::replace(line.begin() + static_cast<std::ptrdiff_t>(body), line.end(), '\n', ' ');
  line += '\n';
  [[maybe_unused]] const auto written = ::write(STDERR_FILENO, line.data(), line.size());
}

}  // namespace rdmacoll
