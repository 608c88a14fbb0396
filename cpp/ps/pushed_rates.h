// The learning rates of a variable's updates. Rows that catch up later need them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

namespace rdmacoll::ps {

class PushedRates {
 public:
  // If a row has missed more changes, its oldest updates use the oldest rate that is kept. Moments
  // have faded by then. Weight decay has an error if the rate has changed.
  static constexpr std::size_t kChangesMax = 1u << 16;

  // Notes the rate of an update after all noted ones. None: the rule's.
  void note(uint64_t update, std::optional<double> rate) {
    const std::optional<double> before = changes_.empty() ? std::nullopt : changes_.back().rate;
    if (rate == before) return;
    if (changes_.empty() && update > 0) changes_.push_back({0, std::nullopt});
    if (changes_.size() >= kChangesMax) {
      changes_.erase(changes_.begin(), changes_.begin() + kChangesMax / 2);
    }
    changes_.push_back({update, rate});
  }
  std::optional<double> at(uint64_t update) const {
    if (changes_.empty()) return std::nullopt;
    const auto later =
        std::upper_bound(changes_.begin(), changes_.end(), update,
                         [](uint64_t number, const Change& one) { return number < one.from; });
    return (later == changes_.begin() ? *later : *std::prev(later)).rate;
  }
  void clear() { changes_.clear(); }

 private:
  struct Change {
    uint64_t from = 0;  // number of the first update with this rate
    std::optional<double> rate;
  };
  std::vector<Change> changes_;
};

}  // namespace rdmacoll::ps
