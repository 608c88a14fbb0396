// One update of variables by a gradient, as Keras 3's update_step of the same optimizer makes it:
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
  // Number `step` of this variable, from 0 on. `decays`: whether the rule's weight decay is for
  // this variable. float32 or float64. `rate`: that which came with the push, or none: the rule's.
  Update(const UpdateRule& rule, Dtype dtype, int64_t step, bool decays,
         std::optional<double> rate = {});

  // Of `count` elements; `slots` as rule.slots() names them. A null gradient is one of zeros.
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
  // Rounded to the dtype, as Keras casts them.
  double rate_ = 0;
  double decay_ = 0;      // weight decay; 0: none
  double adam_rate_ = 0;  // the rate with both corrections of the bias
};

// What so many updates without a gradient make of the slots of values that have settled.
void fade(const UpdateRule& rule, Dtype dtype, std::span<std::byte* const> slots, uint64_t updates,
          std::size_t count);

}  // namespace rdmacoll::ps
