// One line per fact, on stderr, written with one write(2): "[rdmacoll rank 3] warning: ...".
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace rdmacoll {

enum class LogLevel : uint8_t { error, warning, info, debug };

// A value, not a global. Its owner logs with it: an Engine, for example, with its own rank.
class Log {
 public:
  Log() = default;
  Log(LogLevel level, int rank) : level_(level), rank_(rank) {}

  void error(std::string_view text) const { write(LogLevel::error, text); }
  void warning(std::string_view text) const { write(LogLevel::warning, text); }
  void info(std::string_view text) const { write(LogLevel::info, text); }
  void debug(std::string_view text) const { write(LogLevel::debug, text); }
  // News that the user has asked for, and that is no warning. Hidden if only errors are shown.
  void say(std::string_view text) const {
    if (enabled(LogLevel::warning)) write_line("", text);
  }
  bool enabled(LogLevel level) const { return !silent_ && level <= level_; }
  // A log that writes nothing. The simulator uses it, since it causes thousands of failures.
  static Log silent(int rank) {
    Log log(LogLevel::error, rank);
    log.silent_ = true;
    return log;
  }

 private:
  void write(LogLevel level, std::string_view text) const;
  void write_line(std::string_view prefix, std::string_view text) const;

  LogLevel level_ = LogLevel::warning;
  int rank_ = -1;
  bool silent_ = false;
};

}  // namespace rdmacoll
