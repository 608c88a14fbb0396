// Counts the kernels that wait for the engine, and those that have waited for long. A signal that
// would end this process reads it: the main thread may be inside TensorFlow, waiting for a kernel.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>

namespace rdmacoll::tensorflow {

// Thread-safe. Kernels are counted by the round in which they began. Only the last two rounds are
// distinguished, so an older kernel may count for a newer round.
class Waiting {
 public:
  static Waiting& instance();

  uint32_t begin() {
    const uint32_t round = round_.load(std::memory_order_relaxed);
    counts_[round % 2].fetch_add(1, std::memory_order_relaxed);
    return round;
  }
  void end(uint32_t round) { counts_[round % 2].fetch_sub(1, std::memory_order_relaxed); }

  int32_t now() const {
    return counts_[0].load(std::memory_order_relaxed) + counts_[1].load(std::memory_order_relaxed);
  }

  void start_round() { round_.fetch_add(1, std::memory_order_relaxed); }
  int32_t since_before_this_round() const {
    return counts_[(round_.load(std::memory_order_relaxed) + 1) % 2].load(
        std::memory_order_relaxed);
  }

 private:
  std::atomic<uint32_t> round_{0};
  std::array<std::atomic<int32_t>, 2> counts_{};
};

}  // namespace rdmacoll::tensorflow

extern "C" {
// Begins a new round for later kernels.
__attribute__((visibility("default"))) void rc_tf_start_round(void);
// Returns the number of kernels of earlier rounds that still wait for the engine.
__attribute__((visibility("default"))) int32_t rc_tf_waiting(void);
}
