#include "agreement/drift.h"

#include <algorithm>
#include <utility>

#include "base/status.h"

namespace rdmacoll {
namespace {

// Ways are worth new trials if times differ by this factor. It is more than the noise of the least
// times, and less than what a processor's cores lose when they share a cache no more.
constexpr double kShift = 1.25;

bool is_shifted(Nanoseconds usual, Nanoseconds least) {
  const double ratio = static_cast<double>(least) / static_cast<double>(usual);
  return ratio > kShift || ratio * kShift < 1;
}

}  // namespace

Drift::Drift(int window, uint64_t patience) : window_(window), patience_(patience) {
  RC_ASSERT(window >= 1, "an empty window");
}

// Sizes of the last plan keep their usual time: the machine may change between two plans.
void Drift::begin(uint64_t start, std::vector<uint64_t> bytes) {
  start_ = start;
  period_ = std::move(bytes);
  running_.clear();
  std::erase_if(sizes_, [this](const auto& size) {
    return std::ranges::find(period_, size.first) == period_.end();
  });
}

void Drift::end() {
  period_.clear();
  running_.clear();
}

void Drift::forget() {
  sizes_.clear();
  has_drifted_ = false;
}

void Drift::ended(uint64_t sequence, Nanoseconds now) {
  const auto found = running_.find(sequence);
  RC_ASSERT(found != running_.end(), "a decision without a start");
  const Nanoseconds time = std::max<Nanoseconds>(now - found->second, 1);
  running_.erase(found);
  Size& size = sizes_[period_[(sequence - start_) % period_.size()]];
  ++size.sums;
  if (size.left == 0) size.left = window_;
  size.least = std::min(size.least, time);
  if (--size.left > 0) return;
  const Nanoseconds least = std::exchange(size.least, kNever);
  if (size.usual == 0) {
    size.usual = least;
  } else if (size.sums > patience_ && is_shifted(size.usual, least)) {
    has_drifted_ = true;
  }
}

}  // namespace rdmacoll
