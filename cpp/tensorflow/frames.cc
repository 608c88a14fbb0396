#include "tensorflow/frames.h"

#include <algorithm>
#include <cstring>

#include "tensorflow/call_path.h"

namespace rdmacoll::tensorflow {
namespace {

// Iterations that are tried: from the latest run's on, and from the first one on.
constexpr uint64_t kTriedMax = 64;
constexpr uint64_t kBehind = 16;  // iterations that are tried before the latest, since iterations
                                  // overlap
constexpr std::size_t kLoopsMax = 4;

// TensorFlow's hash of strings: MurmurHash64A by Austin Appleby, in the public domain.
uint64_t hash(std::string_view text) {
  constexpr uint64_t kSeed = 0xdecafcaffe, kFactor = 0xc6a4a7935bd1e995;
  constexpr int kShift = 47;
  uint64_t hash = kSeed ^ (text.size() * kFactor);
  for (; text.size() >= sizeof(uint64_t); text.remove_prefix(sizeof(uint64_t))) {
    uint64_t word = 0;
    std::memcpy(&word, text.data(), sizeof(word));
    word *= kFactor;
    word ^= word >> kShift;
    word *= kFactor;
    hash = (hash ^ word) * kFactor;
  }
  if (!text.empty()) {
    uint64_t word = 0;
    std::memcpy(&word, text.data(), text.size());
    hash = (hash ^ word) * kFactor;
  }
  hash = (hash ^ hash >> kShift) * kFactor;
  return hash ^ hash >> kShift;
}

// TensorFlow's combination of two hashes.
uint64_t combined(uint64_t a, uint64_t b) {
  return a ^ (b + 0x9e3779b97f4a7800 + (a << 10) + (a >> 4));
}

}  // namespace

Frames::Frames(std::string_view node) {
  for (std::string_view name : loops_around(node)) loops_.push_back(hash(name));
  if (!loops_.empty()) latest_.resize(loops_.size() - 1);
}

uint64_t Frames::outer_iterations(uint64_t frame) {
  if (loops_.size() < 2 || loops_.size() > kLoopsMax) return frame;
  const std::lock_guard<std::mutex> lock(mutex_);
  tried_ = latest_;
  if (!find(1, combined(kRootFrame, combined(0, loops_.front())), frame)) return frame;
  latest_ = tried_;
  // The caller adds the innermost iteration. The numbers must be so far apart that such sums differ
  // too. Small multiples of the iterations would not be.
  uint64_t number = 1;
  for (uint64_t iteration : latest_) number = combined(number, iteration);
  return number;
}

// Tries the iterations of the loops from `depth` - 1 on, within the frame `outer`.
bool Frames::find(std::size_t depth, uint64_t outer, uint64_t frame) {
  if (depth == loops_.size()) return outer == frame;
  const auto fits = [&](uint64_t iteration) {
    tried_[depth - 1] = iteration;
    return find(depth + 1, combined(outer, combined(iteration, loops_[depth])), frame);
  };
  const uint64_t latest = latest_[depth - 1];
  const uint64_t begin = latest - std::min(latest, kBehind);
  const uint64_t tried = kTriedMax >> (loops_.size() - 2);  // fewer in deeper loops
  for (uint64_t iteration = latest; iteration < latest + tried; ++iteration) {
    if (fits(iteration)) return true;
  }
  for (uint64_t iteration = begin; iteration < latest; ++iteration) {
    if (fits(iteration)) return true;
  }
  for (uint64_t iteration = 0; iteration < std::min(begin, tried); ++iteration) {
    if (fits(iteration)) return true;
  }
  return false;
}

}  // namespace rdmacoll::tensorflow
