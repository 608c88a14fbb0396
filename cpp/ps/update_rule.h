// What a server does with a gradient: an optimizer and its numbers, as a record that is a text.
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

// Numbers are named as the arguments of Keras' optimizers, and mean the same.
struct UpdateRule {
  Optimizer optimizer = Optimizer::sgd;
  LearningRate learning_rate;
  double momentum = 0;  // sgd, rmsprop
  double nesterov = 0;  // sgd: 0 or 1
  // sgd: 0 or 1: moments are of gradients alone, and the rate is multiplied into them at each
  // update, as in TensorFlow 1; in Keras into the gradient before.
  double rate_behind_momentum = 0;
  double beta_1 = 0.9;  // adam
  double beta_2 = 0.999;
  double amsgrad = 0;                      // adam: 0 or 1
  double rho = 0.9;                        // rmsprop
  double centered = 0;                     // rmsprop: 0 or 1
  double initial_accumulator_value = 0.1;  // adagrad
  double epsilon = 1e-7;
  double weight_decay = 0;  // 0: none; with adam this is AdamW
  double clipvalue = 0;     // 0: none
  double lazy = 0;          // 0 or 1: rows rest without a gradient, whatever the optimizer

  // What is kept beside each variable, in this order: "momentum", "velocity", ...
  std::vector<std::string_view> slots() const;
  double initial_value_of_slots() const;
  // Whether a gradient of zeros changes nothing: then rows without one can be left alone.
  bool rests_without_gradient() const;
  // Of rules without weight decay: how many updates without a gradient move the values at all. Each
  // later one would move them by less than 2^-40 of what the first has, so all that they do is to
  // fade the slots: each is multiplied by the number here, in each. The least: a rest that is short
  // ends in the bits of updates made one by one, whatever the rule. kNeverSettles: they move them
  // for good.
  static constexpr uint64_t kNeverSettles = ~uint64_t{0};
  static constexpr uint64_t kSettlesLeast = 64;
  uint64_t settles_after() const;
  std::array<double, kSlotsMax> fading() const;
  // Whether each update has to bring a learning rate.
  bool needs_rate() const { return learning_rate.schedule == LearningRate::Schedule::pushed; }
};

// Lines of "key=value" or "key=value,value,...": "optimizer" and "schedule" are names, all else
// numbers. What is not named keeps its default.
Status rule_from(std::string_view text, UpdateRule& rule);
// For sentences, of two texts that are not equal: "beta_1=0.9, and this worker has beta_1=0.5".
std::string difference(std::string_view known, std::string_view given);

}  // namespace rdmacoll::ps
