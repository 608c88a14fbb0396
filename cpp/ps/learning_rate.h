// Learning rates and their schedules, as Keras 3 computes them.
#pragma once

#include <cstdint>
#include <vector>

#include "base/status.h"

namespace rdmacoll::ps {

// Numbers are named as the arguments of keras.optimizers.schedules.
struct LearningRate {
  enum class Schedule : uint8_t {
    constant,
    exponential_decay,
    piecewise_constant_decay,
    cosine_decay,
    polynomial_decay,
    inverse_time_decay,
    cosine_decay_restarts,
    pushed,  // there is none: each push brings its rate
  };
  Schedule schedule = Schedule::constant;
  double initial_learning_rate = 0;
  double decay_steps = 1;
  double decay_rate = 1;         // exponential, inverse time
  double staircase = 0;          // exponential, inverse time: 0 or 1
  double alpha = 0;              // both cosines: of the rate at its start, what is left at its end
  double warmup_steps = 0;       // cosine: 0 where there is no warm-up
  double warmup_target = 0;      // cosine
  double end_learning_rate = 0;  // polynomial
  double power = 1;              // polynomial
  double cycle = 0;              // polynomial: 0 or 1
  double first_decay_steps = 1;  // restarts: of the first period
  double t_mul = 2;              // restarts: of a period's length, beside that of the one before
  double m_mul = 1;              // restarts: of the rate at a period's start
  std::vector<double> boundaries;  // piecewise: whole steps, ascending
  std::vector<double> values;      // piecewise: one more

  // Before update number `step`, which counts from 0. In float32, as in Keras. Not of `pushed`.
  float at(int64_t step) const;
};

// What relates the numbers of a schedule; that each is in its range is known.
Status check(const LearningRate& rate);

}  // namespace rdmacoll::ps
