// The trace of a simulation, line by line, to debug a failing seed.
#pragma once

#include <cstdio>
#include <map>
#include <string>
#include <utility>

#include "base/clock.h"
#include "base/text.h"

namespace rdmacoll {

class SimStory {
 public:
  explicit SimStory(bool is_told) : is_told_(is_told) {}

  bool is_told() const { return is_told_; }
  // The number of ranks that have submitted this operation.
  int& begun(std::size_t phase, std::size_t index) { return begun_[{phase, index}]; }
  void begin(const Clock& clock) {
    begun_.clear();
    clock_ = &clock;
    start_ = clock.now();
  }
  void tell(int rank, const std::string& text) const {
    if (is_told_) tell(cat("rank ", rank, " ", text));
  }
  void tell(const std::string& text) const {
    if (!is_told_) return;
    const double ms = static_cast<double>(clock_->now() - start_) / kMillisecond;
    std::fprintf(stderr, "%12.3f ms  %s\n", ms, text.c_str());
  }

 private:
  bool is_told_;
  const Clock* clock_ = nullptr;
  Nanoseconds start_ = 0;
  std::map<std::pair<std::size_t, std::size_t>, int> begun_;
};

}  // namespace rdmacoll
