#include "ps/store.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include "base/text.h"

namespace rdmacoll::ps {
namespace {

void fill_elements(std::byte* first, uint64_t count, Dtype dtype, double value) {
  if (dtype == Dtype::float32) {
    std::fill_n(reinterpret_cast<float*>(first), count, static_cast<float>(value));
  } else {
    std::fill_n(reinterpret_cast<double*>(first), count, value);
  }
}

bool is_zero(std::span<std::byte* const> slots, std::size_t bytes) {
  return std::all_of(slots.begin(), slots.end(), [bytes](const std::byte* slot) {
    return std::all_of(slot, slot + bytes, [](std::byte b) { return b == std::byte{0}; });
  });
}

}  // namespace

Status Store::find_rule(const std::string& text, RuleRef& rule) const {
  for (const Variable& variable : variables_) {
    if (variable.rule->text != text) continue;
    rule = variable.rule;
    return {};
  }
  UpdateRule made;
  RC_RETURN_IF_ERROR(rule_from(text, made));
  rule = std::make_shared<const Rule>(Rule{text, std::move(made)});
  return {};
}

Status Store::check_same(const Variable& known, const StoredSpec& spec, const Rule& rule) {
  if (are_other_parts(known.spec, spec)) {
    return {Code::mismatch, cat("this worker has other parts of variable ", text_of(spec),
                                " than the servers know: declare the same variables in the same "
                                "calls on all workers.")};
  }
  if (known.spec != spec) {
    return {Code::mismatch, cat("workers have different variables: the servers know ",
                                text_of(known.spec), ", and this worker has ", text_of(spec),
                                " in its place. Build the same model on all workers.")};
  }
  if (known.rule->text == rule.text) return {};
  return {Code::mismatch,
          cat("workers have different optimizers for variable ", spec.name, ": the servers use ",
              difference(known.rule->text, rule.text), ". Give all workers the same one.")};
}

uint64_t Store::noted_bytes(const StoredSpec& spec, const UpdateRule& rule) {
  return rule.rests_without_gradient() ? 0 : spec.rows() * sizeof(uint64_t);
}

uint64_t Store::needed_bytes(const StoredSpec& spec, const UpdateRule& rule) {
  return spec.bytes() * (1 + rule.slots().size()) + noted_bytes(spec, rule);
}

Status Store::declare_one(std::size_t index, const StoredSpec& spec, const RuleRef& rule) {
  if (index > variables_.size() || index >= kVariablesMax) {
    return {Code::invalid, cat("variable ", spec.name, " is number ", index, " of at most ",
                               kVariablesMax, ": declare fewer.")};
  }
  if (index < variables_.size()) return check_same(variables_[index], spec, *rule);
  const UpdateRule& update = rule->update;
  const uint64_t needed = needed_bytes(spec, update);
  Variable variable{.spec = spec, .rule = rule, .is_initialized = spec.elements == 0};
  bool has_memory = needed <= bytes_max_ && bytes_ <= bytes_max_ - needed;
  try {
    if (has_memory) {
      variable.values.resize(spec.bytes());
      variable.slots.resize(update.slots().size());
      for (Zeroed<std::byte>& slot : variable.slots) slot.resize(spec.bytes());
      variable.row_updates.resize(noted_bytes(spec, update) / sizeof(uint64_t));
    }
  } catch (const std::bad_alloc&) {
    has_memory = false;
  }
  if (!has_memory) {
    return {Code::failed,
            cat("this server has no memory for variable ", spec.name, ": ", bytes_text(needed),
                " beside ", bytes_text(bytes_), " that it stores, of ", bytes_text(bytes_max_),
                " that it may use. Use more servers, or a machine or container "
                "with more memory.")};
  }
  bytes_ += needed;
  variables_.push_back(std::move(variable));
  return {};
}

Status Store::declare(const std::string& text, std::size_t first,
                      std::span<const StoredSpec> specs) {
  if (text.empty() && !specs.empty()) {
    return {Code::invalid,
            cat("variable ", specs[0].name, " comes without an optimizer: name one.")};
  }
  RuleRef rule;
  RC_RETURN_IF_ERROR(find_rule(text, rule));
  const std::size_t known = variables_.size();
  for (std::size_t i = 0; i < specs.size(); ++i) {
    const Status status = declare_one(first + i, specs[i], rule);
    if (status.ok()) continue;
    for (; variables_.size() > known; variables_.pop_back()) {
      bytes_ -= needed_bytes(variables_.back().spec, rule->update);
    }
    return status;
  }
  return {};
}

bool Store::fill(uint64_t& left) {
  for (; filled_ < variables_.size(); ++filled_, filled_part_ = 0) {
    Variable& variable = variables_[filled_];
    const double value = variable.rule->update.initial_value_of_slots();
    const uint64_t elements = variable.spec.elements;
    while (value != 0 && filled_part_ < elements * variable.slots.size()) {
      if (left == 0) return false;
      const uint64_t first = filled_part_ % elements;
      const uint64_t count = std::min(left, elements - first);
      fill_elements(
          variable.slots[filled_part_ / elements].data() + first * size_of(variable.spec.dtype),
          count, variable.spec.dtype, value);
      filled_part_ += count;
      left -= count;
    }
  }
  return true;
}

void Store::write(std::size_t variable, std::size_t slot, uint64_t first,
                  std::span<const std::byte> data) {
  Variable& to = variables_[variable];
  Zeroed<std::byte>& memory = slot == 0 ? to.values : to.slots[slot - 1];
  std::memcpy(memory.data() + first * size_of(to.spec.dtype), data.data(), data.size());
}

std::span<const std::byte> Store::stored(std::size_t variable, std::size_t slot, uint64_t first,
                                         std::size_t bytes) const {
  const Variable& of = variables_[variable];
  const Zeroed<std::byte>& memory = slot == 0 ? of.values : of.slots[slot - 1];
  return std::span(memory).subspan(first * size_of(of.spec.dtype), bytes);
}

void Store::set_initialized(std::size_t variable, uint64_t updates) {
  Variable& of = variables_[variable];
  of.is_initialized = true;
  if (updates > 0) begin_at(of, updates);  // 0: the variable is in this state already
}

// The variable now has this number of updates, and no row has missed one.
void Store::begin_at(Variable& variable, uint64_t updates) {
  variable.updates = variable.begun_at = updates;
  try {
    variable.row_updates = Zeroed<uint64_t>(variable.row_updates.size());
  } catch (const std::bad_alloc&) {  // not enough memory for both
    std::fill(variable.row_updates.begin(), variable.row_updates.end(), 0);
  }
  variable.rates.clear();
  variable.late.clear();
}

uint64_t Store::begin_update(std::size_t variable, std::optional<double> rate) {
  Variable& of = variables_[variable];
  if (!of.row_updates.empty()) of.rates.note(of.updates, rate);
  return of.updates++;
}

std::span<std::byte* const> Store::slots_at(Variable& variable, uint64_t first) {
  slot_addresses_.clear();
  for (Zeroed<std::byte>& slot : variable.slots) {
    slot_addresses_.push_back(slot.data() + first * size_of(variable.spec.dtype));
  }
  return slot_addresses_;
}

void Store::update(std::size_t variable, uint64_t step, uint64_t first,
                   std::span<const std::byte> gradient, std::optional<double> rate) {
  Variable& of = variables_[variable];
  const std::size_t bytes = size_of(of.spec.dtype);
  const uint64_t end = first + gradient.size() / bytes;
  Update(of.rule->update, of.spec.dtype, static_cast<int64_t>(step), of.spec.decays, rate)
      .apply(of.values.data() + first * bytes, slots_at(of, first), gradient.data(), end - first);
  if (of.row_updates.empty()) return;
  of.late.clear();                              // some of these rows have received a gradient
  const uint64_t width = of.spec.row_elements;  // rows that begin in this range are counted
  for (uint64_t row = (first + width - 1) / width; row * width < end; ++row) ++of.row_updates[row];
}

// Applies the missed updates up to number `updates`, exclusive. Returns whether the row has caught
// up.
bool Store::catch_up_row(Variable& variable, uint64_t row, uint64_t updates, uint64_t& left) {
  if (variable.row_updates.empty() || variable.updates_of(row) >= updates) return true;
  if (left == 0) return false;
  const auto late = std::find_if(variable.late.begin(), variable.late.end(),
                                 [row](const LateRow& one) { return one.row == row; });
  const bool is_known = late != variable.late.end();
  const uint64_t since = is_known ? late->since : variable.updates_of(row);
  const uint64_t has_had = make_up(variable, row, since, updates,
                                   slots_at(variable, row * variable.spec.row_elements), left);
  variable.row_updates[row] = has_had - variable.begun_at;
  const bool is_done = has_had == updates;
  if (is_done && is_known) variable.late.erase(late);
  if (!is_done && !is_known) variable.late.push_back({row, since});
  return is_done;
}

// Applies updates without a gradient while elements are `left`. Returns the row's number of updates
// afterwards.
uint64_t Store::make_up(Variable& variable, uint64_t row, uint64_t since, uint64_t updates,
                        std::span<std::byte* const> slots, uint64_t& left) {
  const UpdateRule& rule = variable.rule->update;
  const StoredSpec& spec = variable.spec;
  const uint64_t elements = spec.row_elements;
  uint64_t has_had = variable.updates_of(row);
  const bool decays = spec.decays && rule.weight_decay != 0;
  // A row that never had a gradient does not move.
  if (!decays && is_zero(slots, spec.row_bytes())) {
    left -= std::min(left, elements);
    return updates;
  }
  const uint64_t settles = decays ? UpdateRule::kNeverSettles : variable.rule->settles_after;
  while (has_had < updates && left > 0) {
    if (has_had - since >= settles) {
      fade(rule, spec.dtype, slots, updates - has_had, elements);
      has_had = updates;
    } else {
      Update(rule, spec.dtype, static_cast<int64_t>(has_had), spec.decays,
             variable.rates.at(has_had))
          .apply(variable.values.data() + row * spec.row_bytes(), slots, nullptr, elements);
      ++has_had;
    }
    left -= std::min(left, elements);
  }
  return has_had;
}

bool Store::catch_up(std::size_t variable, uint64_t updates, uint64_t& row, uint64_t& left) {
  Variable& of = variables_[variable];
  for (; row < of.row_updates.size() && catch_up_row(of, row, updates, left); ++row) {
    if (left == 0) return false;
    --left;  // visiting a row is work, too
  }
  return row >= of.row_updates.size();
}

std::size_t Store::update_rows(std::size_t variable, uint64_t step, std::span<const int64_t> rows,
                               const std::byte* gradients, uint64_t& left,
                               std::optional<double> rate) {
  Variable& of = variables_[variable];
  const Update one(of.rule->update, of.spec.dtype, static_cast<int64_t>(step), of.spec.decays,
                   rate);
  std::size_t done = 0;
  for (; done < rows.size(); ++done) {
    const auto row = static_cast<uint64_t>(rows[done]);
    if (!catch_up_row(of, row, step, left)) break;
    // The row now has one update more. If another worker's data of a later step came first, the row
    // has already had an update without a gradient for this step. The count makes up for that: the
    // row receives one update less later.
    if (!of.row_updates.empty()) ++of.row_updates[row];
    std::erase_if(of.late, [row](const LateRow& one) { return one.row == row; });
    const uint64_t first = row * of.spec.row_elements;
    one.apply(of.values.data() + first * size_of(of.spec.dtype), slots_at(of, first),
              gradients + done * of.spec.row_bytes(), of.spec.row_elements);
  }
  return done;
}

std::size_t Store::read_rows(std::size_t variable, std::span<const int64_t> rows, std::byte* values,
                             uint64_t& left) {
  Variable& of = variables_[variable];
  const std::size_t bytes = of.spec.row_bytes();
  std::size_t done = 0;
  for (; done < rows.size(); ++done) {
    const auto row = static_cast<uint64_t>(rows[done]);
    if (!catch_up_row(of, row, of.updates, left)) break;
    std::memcpy(values + done * bytes, of.values.data() + row * bytes, bytes);
  }
  return done;
}

}  // namespace rdmacoll::ps
