#include "ps/update.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace rdmacoll::ps {
namespace {

// The number of elements in a block. A block, or a block of zeros for a missing gradient, stays in
// the first-level cache between passes.
constexpr std::size_t kBlock = 512;

// Keras rounds these numbers to float32 before it casts them to a variable's dtype, even to
// float64.
template <typename T>
T cast(double number) {
  return static_cast<T>(static_cast<float>(number));
}

template <typename T>
struct Operands {
  T* __restrict values;
  std::array<T*, kSlotsMax> slots;
  const T* __restrict gradient;
  std::size_t count;
};

template <typename T>
void decay_weights(const Operands<T>& on, T decay, T rate) {
  for (std::size_t i = 0; i < on.count; ++i) on.values[i] -= on.values[i] * decay * rate;
}

template <typename T>
void descend(const Operands<T>& on, T rate) {
  for (std::size_t i = 0; i < on.count; ++i) on.values[i] -= on.gradient[i] * rate;
}

template <typename T>
void descend_with_momentum(const Operands<T>& on, const UpdateRule& rule, T rate) {
  T* __restrict moments = on.slots[0];
  const T momentum = cast<T>(rule.momentum);
  if (rule.rate_behind_momentum != 0) {
    for (std::size_t i = 0; i < on.count; ++i) {
      const T gradient = on.gradient[i];
      moments[i] = moments[i] * momentum + gradient;
      const T ahead = gradient * rate + moments[i] * momentum * rate;
      on.values[i] -= rule.nesterov != 0 ? ahead : moments[i] * rate;
    }
    return;
  }
  if (rule.nesterov == 0) {
    for (std::size_t i = 0; i < on.count; ++i) {
      moments[i] = moments[i] * momentum - on.gradient[i] * rate;
      on.values[i] += moments[i];
    }
    return;
  }
  for (std::size_t i = 0; i < on.count; ++i) {
    const T pull = on.gradient[i] * rate;
    moments[i] = moments[i] * momentum - pull;
    on.values[i] += moments[i] * momentum - pull;
  }
}

template <typename T>
void adam(const Operands<T>& on, const UpdateRule& rule, T rate) {
  T* __restrict moments = on.slots[0];
  T* __restrict squares = on.slots[1];
  const auto to_moment = static_cast<T>(1 - rule.beta_1);
  const auto to_square = static_cast<T>(1 - rule.beta_2);
  const auto epsilon = static_cast<T>(rule.epsilon);
  for (std::size_t i = 0; i < on.count; ++i) {
    const T gradient = on.gradient[i];
    moments[i] += (gradient - moments[i]) * to_moment;
    squares[i] += (gradient * gradient - squares[i]) * to_square;
  }
  if (rule.amsgrad != 0) {
    T* __restrict most = on.slots[2];
    for (std::size_t i = 0; i < on.count; ++i) most[i] = std::max(most[i], squares[i]);
  }
  const T* __restrict divisors = on.slots[rule.amsgrad != 0 ? 2 : 1];
  for (std::size_t i = 0; i < on.count; ++i) {
    on.values[i] -= moments[i] * rate / (std::sqrt(divisors[i]) + epsilon);
  }
}

template <typename T>
void rmsprop(const Operands<T>& on, const UpdateRule& rule, T rate) {
  T* __restrict squares = on.slots[0];
  const bool has_momentum = rule.momentum > 0;
  T* __restrict averages = on.slots[has_momentum ? 2 : 1];
  T* __restrict moments = on.slots[1];
  const auto keep = static_cast<T>(rule.rho);
  const auto take = static_cast<T>(1 - rule.rho);
  const auto epsilon = static_cast<T>(rule.epsilon);
  const auto momentum = static_cast<T>(rule.momentum);
  std::array<T, kBlock> steps;
  for (std::size_t i = 0; i < on.count; ++i) {
    squares[i] = keep * squares[i] + take * (on.gradient[i] * on.gradient[i]);
    steps[i] = squares[i];
  }
  if (rule.centered != 0) {
    for (std::size_t i = 0; i < on.count; ++i) {
      averages[i] = keep * averages[i] + take * on.gradient[i];
      steps[i] -= averages[i] * averages[i];
    }
  }
  for (std::size_t i = 0; i < on.count; ++i) {
    steps[i] = rate * on.gradient[i] / std::sqrt(steps[i] + epsilon);
  }
  if (has_momentum) {
    for (std::size_t i = 0; i < on.count; ++i) {
      moments[i] = momentum * moments[i] + steps[i];
      steps[i] = moments[i];
    }
  }
  for (std::size_t i = 0; i < on.count; ++i) on.values[i] -= steps[i];
}

template <typename T>
void adagrad(const Operands<T>& on, const UpdateRule& rule, T rate) {
  T* __restrict squares = on.slots[0];
  const auto epsilon = static_cast<T>(rule.epsilon);
  for (std::size_t i = 0; i < on.count; ++i) {
    squares[i] += on.gradient[i] * on.gradient[i];
    on.values[i] -= rate * on.gradient[i] / std::sqrt(squares[i] + epsilon);
  }
}

template <typename T>
void multiply(std::byte* slot, double factor, std::size_t count) {
  auto* const elements = reinterpret_cast<T*>(slot);
  // Adding zero turns -0 into 0, so that underflow leaves no sign.
  for (std::size_t i = 0; i < count; ++i) elements[i] = static_cast<T>(elements[i] * factor) + T{0};
}

}  // namespace

void fade(const UpdateRule& rule, Dtype dtype, std::span<std::byte* const> slots, uint64_t updates,
          std::size_t count) {
  const std::array<double, kSlotsMax> fading = rule.fading();
  for (std::size_t i = 0; i < slots.size(); ++i) {
    const double factor = std::pow(fading[i], static_cast<double>(updates));
    if (dtype == Dtype::float32) {
      multiply<float>(slots[i], factor, count);
    } else {
      multiply<double>(slots[i], factor, count);
    }
  }
}

Update::Update(const UpdateRule& rule, Dtype dtype, int64_t step, bool decays,
               std::optional<double> rate)
    : rule_(rule), dtype_(dtype), decay_(decays ? rule.weight_decay : 0) {
  RC_ASSERT(dtype == Dtype::float32 || dtype == Dtype::float64, std::string(name_of(dtype)));
  if (dtype == Dtype::float32) {
    prepare<float>(step, rate);
  } else {
    prepare<double>(step, rate);
  }
}

template <typename T>
void Update::prepare(int64_t step, std::optional<double> given) {
  const auto rate = static_cast<T>(given ? *given : rule_.learning_rate.at(step));
  rate_ = rate;
  if (rule_.optimizer != Optimizer::adam) return;
  const auto counted = static_cast<T>(step + 1);
  const T first = std::pow(cast<T>(rule_.beta_1), counted);
  const T second = std::pow(cast<T>(rule_.beta_2), counted);
  adam_rate_ = rate * std::sqrt(1 - second) / (1 - first);
}

template <typename T>
void Update::apply_as(T* values, std::span<std::byte* const> slots, const T* gradient,
                      std::size_t count) const {
  static constexpr std::array<T, kBlock> kZeros{};
  const auto limit = static_cast<T>(rule_.clipvalue);
  std::array<T, kBlock> clipped;
  for (std::size_t at = 0; at < count; at += kBlock) {
    Operands<T> on{values + at,
                   {},
                   gradient == nullptr ? kZeros.data() : gradient + at,
                   std::min(kBlock, count - at)};
    for (std::size_t i = 0; i < slots.size(); ++i) {
      on.slots[i] = reinterpret_cast<T*>(slots[i]) + at;
    }
    if (limit > 0) {
      for (std::size_t i = 0; i < on.count; ++i) {
        clipped[i] = std::clamp(on.gradient[i], -limit, limit);
      }
      on.gradient = clipped.data();
    }
    if (decay_ != 0) decay_weights(on, cast<T>(decay_), static_cast<T>(rate_));
    switch (rule_.optimizer) {
      case Optimizer::sgd:
        if (slots.empty()) {
          descend(on, static_cast<T>(rate_));
        } else {
          descend_with_momentum(on, rule_, static_cast<T>(rate_));
        }
        break;
      case Optimizer::adam:
        adam(on, rule_, static_cast<T>(adam_rate_));
        break;
      case Optimizer::rmsprop:
        rmsprop(on, rule_, static_cast<T>(rate_));
        break;
      case Optimizer::adagrad:
        adagrad(on, rule_, static_cast<T>(rate_));
        break;
    }
  }
}

void Update::apply(std::byte* values, std::span<std::byte* const> slots, const std::byte* gradient,
                   std::size_t count) const {
  if (dtype_ == Dtype::float32) {
    apply_as(reinterpret_cast<float*>(values), slots, reinterpret_cast<const float*>(gradient),
             count);
  } else {
    apply_as(reinterpret_cast<double*>(values), slots, reinterpret_cast<const double*>(gradient),
             count);
  }
}

}  // namespace rdmacoll::ps
