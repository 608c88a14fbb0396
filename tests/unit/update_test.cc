// Compares the updates that servers make with values computed by hand.
// tests/python/test_ps_rules.py compares them with Keras over many steps.
#include "ps/update.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>

namespace rdmacoll::ps {
namespace {

UpdateRule rule_of(const std::string& text) {
  UpdateRule rule;
  const Status read = rule_from(text, rule);
  EXPECT_TRUE(read.ok()) << read.message();
  return rule;
}

// One element with its slots, updated again and again.
template <typename T>
struct Element {
  explicit Element(const std::string& text, T value = 0)
      : rule(rule_of(text)), values(kCount, value) {
    slots.assign(rule.slots().size(),
                 std::vector<T>(kCount, static_cast<T>(rule.initial_value_of_slots())));
  }
  // More than a block, so that its end shows too.
  static constexpr std::size_t kCount = 1031;

  T after(T gradient, bool decays = true) {
    std::vector<std::byte*> addresses;
    for (auto& slot : slots) addresses.push_back(reinterpret_cast<std::byte*>(slot.data()));
    const std::vector<T> gradients(kCount, gradient);
    constexpr Dtype kDtype = sizeof(T) == 4 ? Dtype::float32 : Dtype::float64;
    Update(rule, kDtype, step++, decays)
        .apply(reinterpret_cast<std::byte*>(values.data()), addresses,
               gradient == 0 ? nullptr : reinterpret_cast<const std::byte*>(gradients.data()),
               kCount);
    for (const T value : values) {
      EXPECT_TRUE(value == values[0] || std::isnan(values[0])) << value;
    }
    return values[0];
  }

  UpdateRule rule;
  std::vector<T> values;
  std::vector<std::vector<T>> slots;
  int64_t step = 0;
};

template <typename T>
class Updates : public testing::Test {};
using Floats = testing::Types<float, double>;
TYPED_TEST_SUITE(Updates, Floats);

TYPED_TEST(Updates, of_sgd_go_down_the_gradient) {
  Element<TypeParam> on("optimizer=sgd\ninitial_learning_rate=0.5\n", 1);
  EXPECT_FLOAT_EQ(on.after(2), 0);
  EXPECT_FLOAT_EQ(on.after(-4), 2);
  EXPECT_TRUE(on.slots.empty());
}

TYPED_TEST(Updates, of_momentum_remember_where_they_went) {
  Element<TypeParam> on("optimizer=sgd\ninitial_learning_rate=0.5\nmomentum=0.5", 1);
  EXPECT_FLOAT_EQ(on.after(2), 0);
  EXPECT_FLOAT_EQ(on.after(2), -1.5);
  EXPECT_FLOAT_EQ(on.after(0), -2.25);
}

TYPED_TEST(Updates, of_nesterov_look_ahead) {
  Element<TypeParam> on("optimizer=sgd\ninitial_learning_rate=0.5\nmomentum=0.5\nnesterov=1", 1);
  EXPECT_FLOAT_EQ(on.after(2), -0.5);
  EXPECT_FLOAT_EQ(on.after(2), -2.25);
}

constexpr const char* kAdam =
    "optimizer=adam\ninitial_learning_rate=1\nbeta_1=0.5\nbeta_2=0.75\nepsilon=0\n";

TYPED_TEST(Updates, of_adam_have_the_size_of_the_rate) {
  Element<TypeParam> on(kAdam);
  EXPECT_FLOAT_EQ(on.after(2), -1);
  EXPECT_NEAR(on.after(0), -1.509175, 1e-6);
}

TYPED_TEST(Updates, of_amsgrad_do_not_forget_the_largest_square) {
  Element<TypeParam> on(std::string(kAdam) + "amsgrad=1");
  EXPECT_FLOAT_EQ(on.after(2), -1);
  EXPECT_NEAR(on.after(0), -1.440959, 1e-6);
}

TYPED_TEST(Updates, of_adam_add_epsilon_to_the_root) {
  Element<TypeParam> on(
      "optimizer=adam\ninitial_learning_rate=1\nbeta_1=0.5\nbeta_2=0.75\nepsilon=3");
  EXPECT_FLOAT_EQ(on.after(2), -0.25);
}

TYPED_TEST(Updates, of_rmsprop_divide_by_the_mean_square) {
  const std::string text = "optimizer=rmsprop\ninitial_learning_rate=1\nrho=0.5\nepsilon=0\n";
  EXPECT_NEAR(Element<TypeParam>(text).after(2), -std::sqrt(2.0), 1e-6);
  EXPECT_FLOAT_EQ(Element<TypeParam>(text + "centered=1").after(2), -2);
  Element<TypeParam> moving(text + "momentum=0.5");
  EXPECT_NEAR(moving.after(2), -std::sqrt(2.0), 1e-6);
  EXPECT_NEAR(moving.after(0), -1.5 * std::sqrt(2.0), 1e-6);
  Element<TypeParam> both(text + "momentum=0.5\ncentered=1");
  EXPECT_FLOAT_EQ(both.after(2), -2);
  EXPECT_FLOAT_EQ(both.after(0), -3);
}

TYPED_TEST(Updates, of_adagrad_divide_by_all_squares) {
  Element<TypeParam> on(
      "optimizer=adagrad\ninitial_learning_rate=3\ninitial_accumulator_value=5\nepsilon=0");
  EXPECT_FLOAT_EQ(on.after(2), -2);
  EXPECT_FLOAT_EQ(on.after(-4), -2 + 12.0 / 5);
}

TYPED_TEST(Updates, decay_weights_first_where_they_do) {
  const std::string text = "optimizer=sgd\ninitial_learning_rate=0.5\nweight_decay=0.1";
  EXPECT_FLOAT_EQ(Element<TypeParam>(text, 10).after(2), 8.5);
  EXPECT_FLOAT_EQ(Element<TypeParam>(text, 10).after(2, false), 9);
}

TYPED_TEST(Updates, clip_each_element) {
  const std::string text = "optimizer=sgd\ninitial_learning_rate=1\nclipvalue=3";
  EXPECT_FLOAT_EQ(Element<TypeParam>(text).after(10), -3);
  EXPECT_FLOAT_EQ(Element<TypeParam>(text).after(-10), 3);
  EXPECT_FLOAT_EQ(Element<TypeParam>(text).after(2), -2);
}

TEST(Update, pass_not_a_number_on) {
  EXPECT_TRUE(std::isnan(
      Element<float>("optimizer=sgd\ninitial_learning_rate=1\nclipvalue=3").after(std::nanf(""))));
  EXPECT_TRUE(std::isnan(Element<float>(kAdam).after(std::nanf(""))));
}

TEST(UpdateRule, only_some_change_nothing_without_a_gradient) {
  for (const char* text :
       {"optimizer=sgd", "optimizer=adagrad", "optimizer=sgd\nmomentum=0.1\nlazy=1"}) {
    EXPECT_TRUE(rule_of(text).rests_without_gradient()) << text;
  }
  for (const char* text : {"optimizer=sgd\nmomentum=0.1", "optimizer=sgd\nweight_decay=0.1",
                           "optimizer=adam", "optimizer=rmsprop"}) {
    EXPECT_FALSE(rule_of(text).rests_without_gradient()) << text;
  }
}

float rate_at(const std::string& text, int64_t step) {
  return rule_of("optimizer=sgd\n" + text).learning_rate.at(step);
}

TEST(LearningRates, follow_their_schedules) {
  EXPECT_FLOAT_EQ(rate_at("initial_learning_rate=0.25", 1000), 0.25);
  const std::string exponential =
      "schedule=exponential_decay\ninitial_learning_rate=8\ndecay_steps=10\ndecay_rate=0.25\n";
  EXPECT_FLOAT_EQ(rate_at(exponential, 0), 8);
  EXPECT_FLOAT_EQ(rate_at(exponential, 5), 4);
  EXPECT_FLOAT_EQ(rate_at(exponential + "staircase=1", 19), 2);
  const std::string piecewise = "schedule=piecewise_constant_decay\nboundaries=10,20\nvalues=3,2,1";
  EXPECT_FLOAT_EQ(rate_at(piecewise, 0), 3);
  EXPECT_FLOAT_EQ(rate_at(piecewise, 10), 3);
  EXPECT_FLOAT_EQ(rate_at(piecewise, 11), 2);
  EXPECT_FLOAT_EQ(rate_at(piecewise, 20), 2);
  EXPECT_FLOAT_EQ(rate_at(piecewise, 21), 1);
  const std::string cosine =
      "schedule=cosine_decay\ninitial_learning_rate=2\ndecay_steps=10\nalpha=0.5\n";
  EXPECT_FLOAT_EQ(rate_at(cosine, 0), 2);
  EXPECT_FLOAT_EQ(rate_at(cosine, 5), 1.5);
  EXPECT_FLOAT_EQ(rate_at(cosine, 99), 1);
  const std::string warm = cosine + "warmup_steps=4\nwarmup_target=6\n";
  EXPECT_FLOAT_EQ(rate_at(warm, 0), 2);
  EXPECT_FLOAT_EQ(rate_at(warm, 2), 4);
  EXPECT_FLOAT_EQ(rate_at(warm, 4), 6);
  EXPECT_FLOAT_EQ(rate_at(warm, 9), 4.5);
  const std::string polynomial =
      "schedule=polynomial_decay\ninitial_learning_rate=5\nend_learning_rate=1\ndecay_steps=10\n"
      "power=2\n";
  EXPECT_FLOAT_EQ(rate_at(polynomial, 0), 5);
  EXPECT_FLOAT_EQ(rate_at(polynomial, 5), 2);
  EXPECT_FLOAT_EQ(rate_at(polynomial, 15), 1);
  EXPECT_FLOAT_EQ(rate_at(polynomial + "cycle=1", 0), 5);
  EXPECT_FLOAT_EQ(rate_at(polynomial + "cycle=1", 15), 1.25);
  const std::string inverse =
      "schedule=inverse_time_decay\ninitial_learning_rate=6\ndecay_steps=10\ndecay_rate=2\n";
  EXPECT_FLOAT_EQ(rate_at(inverse, 5), 3);
  EXPECT_FLOAT_EQ(rate_at(inverse + "staircase=1", 9), 6);
}

TEST(UpdateRule, refuses_what_servers_cannot_do) {
  const auto refusal = [](const std::string& text) {
    UpdateRule rule;
    return rule_from(text, rule).message();
  };
  EXPECT_THAT(refusal("optimizer=lion"),
              testing::HasSubstr("no optimizer lion: choose one of sgd, adam, rmsprop, adagrad"));
  EXPECT_THAT(refusal("schedule=mine"),
              testing::HasSubstr("no learning-rate schedule mine: choose one of constant, "));
  EXPECT_THAT(refusal("beta_1=1.5"), testing::HasSubstr("servers take a number from 0 to 1"));
  EXPECT_THAT(refusal("epsilon=-1"), testing::HasSubstr("no number below 0"));
  EXPECT_THAT(refusal("initial_learning_rate=fast"), testing::HasSubstr("any number"));
  EXPECT_THAT(refusal("initial_learning_rate=nan"), testing::HasSubstr("any number"));
  EXPECT_THAT(
      refusal("warmth=1"),
      testing::HasSubstr("no setting of an optimizer called warmth: choose one of optimizer, "
                         "schedule, boundaries, values, initial_learning_rate, "));
  EXPECT_THAT(refusal("t_mul=0.5"), testing::HasSubstr("no number below 1"));
  EXPECT_THAT(refusal("momentum"), testing::HasSubstr("momentum is : servers take"));
  EXPECT_THAT(refusal("schedule=piecewise_constant_decay\nboundaries=1,2\nvalues=1"),
              testing::HasSubstr("2 boundaries and 1 values"));
  EXPECT_THAT(refusal("schedule=piecewise_constant_decay\nboundaries=2,1\nvalues=1,2,3"),
              testing::HasSubstr("sort them"));
  EXPECT_THAT(refusal("values=1,,2"), testing::HasSubstr("values"));
  EXPECT_THAT(refusal(std::string(kRuleBytesMax + 1, 'x')), testing::HasSubstr("65536"));
}

}  // namespace
}  // namespace rdmacoll::ps
