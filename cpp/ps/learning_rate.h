// Learning rates and their schedules, as Keras 3 computes them.
#pragma once

#include <cstdint>
#include <vector>

#include "base/status.h"

namespace rdmacoll::ps {

// Members have the names of the arguments of keras.optimizers.schedules.
struct LearningRate {
  enum class Schedule : uint8_t {
    constant,
    exponential_decay,
    piecewise_constant_decay,
    cosine_decay,
    polynomial_decay,
    inverse_time_decay,
    cosine_decay_restarts,
    pushed,  // no schedule: each push has its rate
  };
  Schedule schedule = Schedule::constant;
  double initial_learning_rate = 0;
  double decay_steps = 1;
  double decay_rate = 1;           // exponential, inverse time
  double staircase = 0;            // exponential, inverse time: 0 or 1
  double alpha = 0;                // both cosines: the final rate, as a part of the initial one
  double warmup_steps = 0;         // cosine: 0 for no warm-up
  double warmup_target = 0;        // cosine
  double end_learning_rate = 0;    // polynomial
  double power = 1;                // polynomial
  double cycle = 0;                // polynomial: 0 or 1
  double first_decay_steps = 1;    // restarts: length of the first period
  double t_mul = 2;                // restarts: each period is so many times as long as the last
  double m_mul = 1;                // restarts: factor of a period's initial rate to the last one's
  std::vector<double> boundaries;  // piecewise: whole steps, ascending
  std::vector<double> values;      // piecewise: one more than boundaries

  // The rate of update number `step`, counted from 0. Computed in float32, like Keras. Not for
  // `pushed`.
  float at(int64_t step) const;
};

// Checks the relations between members. The range of each member was checked before.
Status check(const LearningRate& rate);

}  // namespace rdmacoll::ps
