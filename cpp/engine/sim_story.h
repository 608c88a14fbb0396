// What happens in a simulation, line by line, for whoever has a failing seed.
#pragma once

#include <cstdio>
#include <string>

#include "base/clock.h"
#include "base/text.h"

namespace rdmacoll {

class SimStory {
 public:
  explicit SimStory(bool is_told) : is_told_(is_told) {}

  bool is_told() const { return is_told_; }
  void begin(const Clock& clock) {
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
};

}  // namespace rdmacoll
