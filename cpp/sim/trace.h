// The trace of a simulation, line by line, to debug a failing seed.
#pragma once

#include <cstdio>
#include <map>
#include <string>
#include <utility>

#include "base/clock.h"
#include "base/text.h"

namespace rdmacoll {

class SimTrace {
 public:
  explicit SimTrace(bool is_printed) : is_printed_(is_printed) {}

  bool is_printed() const { return is_printed_; }
  // The number of ranks that have submitted this operation.
  int& begun(std::size_t phase, std::size_t index) { return begun_[{phase, index}]; }
  void begin(const Clock& clock) {
    begun_.clear();
    clock_ = &clock;
    start_ = clock.now();
  }
  void print(int rank, const std::string& text) const {
    if (is_printed_) print(cat("rank ", rank, " ", text));
  }
  void print(const std::string& text) const {
    if (!is_printed_) return;
    const double ms = static_cast<double>(clock_->now() - start_) / kMillisecond;
    std::fprintf(stderr, "%12.3f ms  %s\n", ms, text.c_str());
  }

 private:
  bool is_printed_;
  const Clock* clock_ = nullptr;
  Nanoseconds start_ = 0;
  std::map<std::pair<std::size_t, std::size_t>, int> begun_;
};

}  // namespace rdmacoll
