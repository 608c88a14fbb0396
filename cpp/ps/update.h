// One update of variables by a gradient, like update_step of the same optimizer in Keras 3.
//
// Kingma and Ba, "Adam", 2014; Loshchilov and Hutter, "Decoupled weight decay regularization"
// (AdamW), 2017; Duchi, Hazan and Singer, "Adaptive subgradient methods" (Adagrad), 2011; Tieleman
// and Hinton, RMSprop, 2012; Sutskever et al., "On the importance of initialization and momentum"
// (Nesterov), 2013.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "base/dtype.h"
#include "ps/update_rule.h"

namespace rdmacoll::ps {

class Update {
 public:
  // `step`: the update's number for this variable, from 0 on. `dtype`: float32 or float64.
  // `decays`: whether the rule's weight decay applies. `rate`: the learning rate of the push; none:
  // the rule's.
  Update(const UpdateRule& rule, Dtype dtype, int64_t step, bool decays,
         std::optional<double> rate = {});

  // Updates `count` elements. `slots`: in the order of rule.slots(). A null gradient means zeros.
  void apply(std::byte* values, std::span<std::byte* const> slots, const std::byte* gradient,
             std::size_t count) const;

 private:
  template <typename T>
  void prepare(int64_t step, std::optional<double> rate);
  template <typename T>
  void apply_as(T* values, std::span<std::byte* const> slots, const T* gradient,
                std::size_t count) const;

  const UpdateRule& rule_;
  Dtype dtype_;
  // Rounded to the dtype, like Keras does.
  double rate_ = 0;
  double decay_ = 0;      // weight decay; 0 for none
  double adam_rate_ = 0;  // the rate with both bias corrections
};

// Applies many updates without a gradient to the slots, after the values have settled.
void fade(const UpdateRule& rule, Dtype dtype, std::span<std::byte* const> slots, uint64_t updates,
          std::size_t count);

}  // namespace rdmacoll::ps
