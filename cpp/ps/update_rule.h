// The rule by which servers apply gradients: an optimizer and its parameters, which travel as text.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "ps/learning_rate.h"

namespace rdmacoll::ps {

enum class Optimizer : uint8_t { sgd, adam, rmsprop, adagrad };

inline constexpr std::size_t kSlotsMax = 3;
inline constexpr std::size_t kRuleBytesMax = std::size_t{64} << 10;

// Members have the names and meanings of the arguments of Keras's optimizers.
struct UpdateRule {
  Optimizer optimizer = Optimizer::sgd;
  LearningRate learning_rate;
  double momentum = 0;  // sgd, rmsprop
  double nesterov = 0;  // sgd: 0 or 1
  // sgd: 0 or 1. 1: the momentum sums gradients, and the learning rate is applied at each update,
  // as in TensorFlow 1. 0: the rate is applied to the gradient first, as in Keras.
  double rate_behind_momentum = 0;
  double beta_1 = 0.9;  // adam
  double beta_2 = 0.999;
  double amsgrad = 0;                      // adam: 0 or 1
  double rho = 0.9;                        // rmsprop
  double centered = 0;                     // rmsprop: 0 or 1
  double initial_accumulator_value = 0.1;  // adagrad
  double epsilon = 1e-7;
  double weight_decay = 0;  // 0: none; AdamW if the optimizer is adam
  double clipvalue = 0;     // 0: none
  double lazy = 0;          // 0 or 1: rows without a gradient rest, with any optimizer

  // The names of the slots of each variable, in order: "momentum", "velocity", ...
  std::vector<std::string_view> slots() const;
  double initial_value_of_slots() const;
  // Whether a gradient of zeros has no effect, so that rows without a gradient can be skipped.
  bool rests_without_gradient() const;
  // For rules without weight decay. settles_after(): the number of updates without a gradient that
  // still move the values. Later updates would move them by less than 2^-40 of the first move, so
  // they only fade the slots. fading(): the factor of each slot for each such update.
  //
  // kSettlesLeast: a shorter rest gives the same bits as single updates, with any rule.
  // kNeverSettles: the updates always move the values.
  static constexpr uint64_t kNeverSettles = ~uint64_t{0};
  static constexpr uint64_t kSettlesLeast = 64;
  uint64_t settles_after() const;
  std::array<double, kSlotsMax> fading() const;
  // Whether each update must have a learning rate.
  bool needs_rate() const { return learning_rate.schedule == LearningRate::Schedule::pushed; }
};

// Reads lines of "key=value" or "key=value,value,...". "optimizer" and "schedule" are names, all
// other values are numbers. Missing keys keep their defaults. Returns an error that names the key.
Status rule_from(std::string_view text, UpdateRule& rule);
// The difference of two unequal texts, for messages: "beta_1=0.9, and this worker has beta_1=0.5".
std::string difference(std::string_view known, std::string_view given);

}  // namespace rdmacoll::ps
