#include "ps/update_rule.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <locale>
#include <optional>
#include <sstream>

#include "base/text.h"

namespace rdmacoll::ps {
namespace {

// In the order of LearningRate::Schedule and Optimizer.
constexpr std::array<std::string_view, 8> kSchedules = {
    "constant",         "exponential_decay",  "piecewise_constant_decay", "cosine_decay",
    "polynomial_decay", "inverse_time_decay", "cosine_decay_restarts",    "pushed"};
constexpr std::array<std::string_view, 4> kOptimizers = {"sgd", "adam", "rmsprop", "adagrad"};

constexpr double kAny = std::numeric_limits<double>::max();
constexpr double kSteps = 1e15;  // exact in double and int64
constexpr std::size_t kListMax = 4096;

struct NumberRow {
  std::string_view key;
  double* number;
  double least, most;
};

auto numbers_of(UpdateRule& rule) {
  LearningRate& rate = rule.learning_rate;
  return std::to_array<NumberRow>({
      {"initial_learning_rate", &rate.initial_learning_rate, -kAny, kAny},
      {"decay_steps", &rate.decay_steps, 1e-9, kSteps},
      {"decay_rate", &rate.decay_rate, 0, kAny},
      {"staircase", &rate.staircase, 0, 1},
      {"alpha", &rate.alpha, -kAny, kAny},
      {"warmup_steps", &rate.warmup_steps, 0, kSteps},
      {"warmup_target", &rate.warmup_target, -kAny, kAny},
      {"end_learning_rate", &rate.end_learning_rate, -kAny, kAny},
      {"power", &rate.power, 0, kAny},
      {"cycle", &rate.cycle, 0, 1},
      {"first_decay_steps", &rate.first_decay_steps, 1e-9, kSteps},
      {"t_mul", &rate.t_mul, 1, kAny},
      {"m_mul", &rate.m_mul, 0, kAny},
      {"momentum", &rule.momentum, 0, 1},
      {"nesterov", &rule.nesterov, 0, 1},
      {"rate_behind_momentum", &rule.rate_behind_momentum, 0, 1},
      {"beta_1", &rule.beta_1, 0, 1},
      {"beta_2", &rule.beta_2, 0, 1},
      {"amsgrad", &rule.amsgrad, 0, 1},
      {"rho", &rule.rho, 0, 1},
      {"centered", &rule.centered, 0, 1},
      {"initial_accumulator_value", &rule.initial_accumulator_value, 0, kAny},
      {"epsilon", &rule.epsilon, 0, kAny},
      {"weight_decay", &rule.weight_decay, 0, kAny},
      {"clipvalue", &rule.clipvalue, 0, kAny},
      {"lazy", &rule.lazy, 0, 1},
  });
}

std::optional<double> set_next_number(std::string_view text) {
  std::istringstream stream{std::string(text)};
  stream.imbue(std::locale::classic());  // the decimal point, independent of the user's locale
  double number = 0;
  if (!(stream >> number) || !stream.eof() || !std::isfinite(number)) return std::nullopt;
  return number;
}

template <std::size_t kCount>
std::optional<uint8_t> index_of(std::string_view name,
                                const std::array<std::string_view, kCount>& names) {
  for (std::size_t i = 0; i < kCount; ++i) {
    if (names[i] == name) return static_cast<uint8_t>(i);
  }
  return std::nullopt;
}

bool list_from(std::string_view text, std::vector<double>& numbers) {
  std::istringstream stream{std::string(text)};
  for (std::string item; std::getline(stream, item, ',');) {
    const std::optional<double> number = set_next_number(item);
    if (!number || numbers.size() == kListMax) return false;
    numbers.push_back(*number);
  }
  return !numbers.empty();
}

Status unknown(std::string_view what, std::string_view name, std::string_view known) {
  return {Code::invalid, cat("servers have no ", what, " ", name, ": choose one of ", known, ".")};
}

Status read_number(std::string_view key, std::string_view value, UpdateRule& rule) {
  for (const NumberRow& row : numbers_of(rule)) {
    if (row.key != key) continue;
    const std::optional<double> number = set_next_number(value);
    if (!number || *number < row.least || *number > row.most) {
      return {Code::invalid,
              cat("the optimizer's ", key, " is ", value, ": servers take ",
                  row.most < kAny      ? cat("a number from ", row.least, " to ", row.most)
                  : row.least == -kAny ? "any number"
                                       : cat("no number below ", row.least),
                  ".")};
    }
    *row.number = *number;
    return {};
  }
  std::vector<std::string_view> known = {"optimizer", "schedule", "boundaries", "values"};
  for (const NumberRow& row : numbers_of(rule)) known.push_back(row.key);
  return unknown("setting of an optimizer called", key, join(known, ", "));
}

Status read_line(std::string_view key, std::string_view value, UpdateRule& rule) {
  if (key == "optimizer") {
    const auto index = index_of(value, kOptimizers);
    if (!index) return unknown("optimizer", value, join(kOptimizers, ", "));
    rule.optimizer = static_cast<Optimizer>(*index);
    return {};
  }
  if (key == "schedule") {
    const auto index = index_of(value, kSchedules);
    if (!index) return unknown("learning-rate schedule", value, join(kSchedules, ", "));
    rule.learning_rate.schedule = static_cast<LearningRate::Schedule>(*index);
    return {};
  }
  if (key != "boundaries" && key != "values") return read_number(key, value, rule);
  auto& list = key == "values" ? rule.learning_rate.values : rule.learning_rate.boundaries;
  list.clear();
  if (list_from(value, list)) return {};
  return {Code::invalid, cat("the ", key, " of a piecewise constant learning rate are ", value,
                             ": give 1 to ", kListMax, " numbers.")};
}

}  // namespace

std::vector<std::string_view> UpdateRule::slots() const {
  switch (optimizer) {
    case Optimizer::sgd:
      if (momentum != 0) return {rate_behind_momentum != 0 ? "gradient_momentum" : "momentum"};
      return {};
    case Optimizer::adam:
      if (amsgrad != 0) return {"momentum", "velocity", "velocity_hat"};
      return {"momentum", "velocity"};
    case Optimizer::rmsprop: {
      std::vector<std::string_view> names = {"velocity"};
      if (momentum > 0) names.emplace_back("momentum");
      if (centered != 0) names.emplace_back("average_gradient");
      return names;
    }
    case Optimizer::adagrad:
      return {"accumulator"};
  }
  return {};
}

double UpdateRule::initial_value_of_slots() const {
  return optimizer == Optimizer::adagrad ? initial_accumulator_value : 0;
}

bool UpdateRule::rests_without_gradient() const {
  if (lazy != 0) return true;
  const bool has_no_memory =
      optimizer == Optimizer::adagrad || (optimizer == Optimizer::sgd && momentum == 0);
  return has_no_memory && weight_decay == 0;
}

uint64_t UpdateRule::settles_after() const {
  // The factor between the moves of consecutive updates without a gradient.
  double factor = momentum;
  if (optimizer == Optimizer::adam) factor = amsgrad != 0 ? beta_1 : beta_1 / std::sqrt(beta_2);
  if (factor >= 1) return kNeverSettles;
  const double updates = factor > 0 ? std::ceil(-40 * std::log(2) / std::log(factor)) : 0;
  return std::max(kSettlesLeast, static_cast<uint64_t>(updates));
}

// In the order of slots().
std::array<double, kSlotsMax> UpdateRule::fading() const {
  switch (optimizer) {
    case Optimizer::sgd:
      return {momentum, 1, 1};
    case Optimizer::adam:
      return {beta_1, beta_2, 1};
    case Optimizer::rmsprop:
      return {rho, momentum > 0 ? momentum : rho, rho};
    case Optimizer::adagrad:
      break;
  }
  return {1, 1, 1};
}

std::string difference(std::string_view known, std::string_view given) {
  const auto lines = [](std::string_view text) {
    std::vector<std::string> split;
    std::istringstream stream{std::string(text)};
    for (std::string line; std::getline(stream, line);) split.push_back(line);
    return split;
  };
  const auto beside = [](const std::vector<std::string>& those,
                         const std::vector<std::string>& these) {
    std::vector<std::string> found;
    for (const std::string& line : those) {
      const bool is_there = std::find(these.begin(), these.end(), line) != these.end();
      if (!is_there) found.push_back(line);
    }
    return found.empty() ? "nothing of that" : join(found, ", ");
  };
  const auto theirs = lines(known), ours = lines(given);
  if (theirs.size() == ours.size() &&
      std::is_permutation(theirs.begin(), theirs.end(), ours.begin())) {
    return "the same numbers in another order";
  }
  return cat(beside(theirs, ours), ", and this worker has ", beside(ours, theirs));
}

Status rule_from(std::string_view text, UpdateRule& rule) {
  rule = {};
  if (text.size() > kRuleBytesMax) {
    return {Code::invalid, cat("the optimizer's numbers take ", text.size(), " bytes: at most ",
                               kRuleBytesMax, " are sent to servers.")};
  }
  std::istringstream lines{std::string(text)};
  for (std::string line; std::getline(lines, line);) {
    const auto equals = line.find('=');
    if (equals == std::string::npos) return read_number(line, "", rule);
    const std::string_view all = line;
    RC_RETURN_IF_ERROR(read_line(all.substr(0, equals), all.substr(equals + 1), rule));
  }
  return check(rule.learning_rate);
}

}  // namespace rdmacoll::ps
