#include "ps/learning_rate.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/text.h"

namespace rdmacoll::ps {
namespace {

float narrow(double number) { return static_cast<float>(number); }

float periods(const LearningRate& rate, float step) {
  const float passed = step / narrow(rate.decay_steps);
  return rate.staircase != 0 ? std::floor(passed) : passed;
}

// The rate after the fraction `passed` of a period. `height`: the rate at the period's start,
// relative to `from`.
float cosine(const LearningRate& rate, float passed, float from, float height = 1) {
  const float decayed = 0.5F * height * (1.0F + std::cos(std::numbers::pi_v<float> * passed));
  return from * (narrow(1 - rate.alpha) * decayed + narrow(rate.alpha));
}

float cosine_with_warm_up(const LearningRate& rate, float step) {
  const float start = narrow(rate.initial_learning_rate);
  const float warm_up = narrow(rate.warmup_steps);
  const float decay_steps = narrow(rate.decay_steps);
  if (warm_up == 0) return cosine(rate, std::min(step, decay_steps) / decay_steps, start);
  const float target = narrow(rate.warmup_target);
  step = std::min(step, decay_steps + warm_up);
  if (step < warm_up) return (target - start) * (step / warm_up) + start;
  return cosine(rate, (step - warm_up) / decay_steps, target);
}

float cosine_with_restarts(const LearningRate& rate, float step) {
  const float longer = narrow(rate.t_mul);
  float passed = step / narrow(rate.first_decay_steps);  // in units of the first period
  float restarts = std::floor(passed);
  if (longer == 1) {
    passed -= restarts;
  } else {
    restarts = std::floor(std::log(1 - passed * (1 - longer)) / std::log(longer));
    const float length = std::pow(longer, restarts);
    passed = (passed - (1 - length) / (1 - longer)) / length;
  }
  return cosine(rate, passed, narrow(rate.initial_learning_rate),
                std::pow(narrow(rate.m_mul), restarts));
}

float polynomial(const LearningRate& rate, float step) {
  float decay_steps = narrow(rate.decay_steps);
  if (rate.cycle == 0) {
    step = std::min(step, decay_steps);
  } else if (step > 0) {
    decay_steps *= std::ceil(step / decay_steps);
  }
  const float end = narrow(rate.end_learning_rate);
  return (narrow(rate.initial_learning_rate) - end) *
             std::pow(1 - step / decay_steps, narrow(rate.power)) +
         end;
}

// A boundary belongs to the value before it.
float piecewise(const LearningRate& rate, int64_t step) {
  const auto passed =
      std::lower_bound(rate.boundaries.begin(), rate.boundaries.end(), static_cast<double>(step));
  return narrow(rate.values[static_cast<std::size_t>(passed - rate.boundaries.begin())]);
}

}  // namespace

float LearningRate::at(int64_t step) const {
  const auto now = static_cast<float>(step);
  const float start = narrow(initial_learning_rate);
  switch (schedule) {
    case Schedule::constant:
      return start;
    case Schedule::exponential_decay:
      return start * std::pow(narrow(decay_rate), periods(*this, now));
    case Schedule::piecewise_constant_decay:
      return piecewise(*this, step);
    case Schedule::cosine_decay:
      return cosine_with_warm_up(*this, now);
    case Schedule::polynomial_decay:
      return polynomial(*this, now);
    case Schedule::inverse_time_decay:
      return start / (1 + narrow(decay_rate) * periods(*this, now));
    case Schedule::cosine_decay_restarts:
      return cosine_with_restarts(*this, now);
    case Schedule::pushed:
      break;
  }
  RC_ASSERT(false, cat("schedule ", static_cast<int>(schedule)));
  return 0;
}

Status check(const LearningRate& rate) {
  if (rate.schedule != LearningRate::Schedule::piecewise_constant_decay) return {};
  if (rate.boundaries.empty() || rate.values.size() != rate.boundaries.size() + 1) {
    return {Code::invalid, cat("a piecewise constant learning rate has ", rate.boundaries.size(),
                               " boundaries and ", rate.values.size(),
                               " values: give it one value more than boundaries.")};
  }
  if (!std::is_sorted(rate.boundaries.begin(), rate.boundaries.end())) {
    return {Code::invalid, cat("the boundaries of a piecewise constant learning rate are ",
                               join(rate.boundaries, ", "), ": sort them.")};
  }
  return {};
}

}  // namespace rdmacoll::ps
