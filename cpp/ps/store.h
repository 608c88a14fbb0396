// The data of one server: its shares of the variables, and the optimizer's state. Only one thread
// calls at a time, so there are no locks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/cgroup.h"
#include "base/dtype.h"
#include "base/status.h"
#include "base/wire.h"
#include "base/zeroed.h"
#include "ps/pushed_rates.h"
#include "ps/update.h"

namespace rdmacoll::ps {

// A variable on one server. The elements of all its shares there are contiguous.
struct StoredSpec {
  std::string name;
  Dtype dtype = Dtype::float32;
  bool decays = true;         // whether the rule's weight decay applies
  uint64_t elements = 0;      // on this server
  uint64_t row_elements = 0;  // for variables by rows, otherwise 0
  std::vector<int64_t> dims;  // shape of the whole variable
  uint64_t shares = 0;        // hash of the parts that are here

  uint64_t bytes() const { return elements * size_of(dtype); }
  uint64_t rows() const { return row_elements == 0 ? 0 : elements / row_elements; }
  uint64_t row_bytes() const { return row_elements * size_of(dtype); }
  bool operator==(const StoredSpec&) const = default;
};

// Describes a variable in messages: "w (float32, shape (9, 5), 45 elements here, by rows)".
std::string text_of(const StoredSpec& spec);
// Whether the specs are equal except for the parts of the variable.
bool are_other_parts(const StoredSpec& one, StoredSpec other);
void write(const StoredSpec& spec, Writer& writer);
StoredSpec read_spec(Reader& reader);  // the reader fails if it has no spec

inline constexpr std::size_t kVariablesMax = 1u << 20;
// The number of elements that may be updated in one step. It takes some milliseconds.
inline constexpr uint64_t kElementsAtOnce = 1u << 20;

class Store {
 public:
  // Refuses variables that would exceed `bytes_max`. A process with more memory than the machine or
  // its container has may be killed later without a message.
  explicit Store(uint64_t bytes_max = memory_limit_bytes()) : bytes_max_(bytes_max) {}

  // Declares variables from number `first` on, with one rule. They are new, or known with the same
  // rule and specs; otherwise it returns a MismatchError. A refused declaration has no effect.
  Status declare(const std::string& rule, std::size_t first, std::span<const StoredSpec> specs);

  std::size_t variables() const { return variables_.size(); }
  // Initializes slots whose initial value is not zero, while elements are `left`. Returns whether
  // all slots are initialized. Declared variables must not be used before.
  bool fill(uint64_t& left);
  bool is_filled() const { return filled_ == variables_.size(); }
  const StoredSpec& spec(std::size_t variable) const { return variables_[variable].spec; }
  uint64_t bytes() const { return bytes_; }  // values, slots and records of rows

  // Slot 0: the values. Slots from 1 on: the optimizer's state.
  std::size_t slots(std::size_t variable) const { return variables_[variable].slots.size(); }
  void write(std::size_t variable, std::size_t slot, uint64_t first,
             std::span<const std::byte> data);
  std::span<const std::byte> stored(std::size_t variable, std::size_t slot, uint64_t first,
                                    std::size_t bytes) const;
  // Call it after all values are written. `updates`: the number of updates that they have had
  // elsewhere. Before that the variable must not be read or updated.
  void set_initialized(std::size_t variable, uint64_t updates = 0);
  bool is_initialized(std::size_t variable) const { return variables_[variable].is_initialized; }

  // Whether each update must have a learning rate, because the rule has none.
  bool needs_rate(std::size_t variable) const {
    return variables_[variable].rule->update.needs_rate();
  }
  // Begins an update and returns its number. Each variable counts its own. `rate`, here and below:
  // the learning rate of this update.
  uint64_t begin_update(std::size_t variable, std::optional<double> rate = {});
  uint64_t updates(std::size_t variable) const { return variables_[variable].updates; }
  // Call it before a whole variable is updated or read. Its rows from `row` on receive the updates
  // before number `updates` that they have missed.
  //
  // This may be much work. Like the two functions below, it stops when no elements are `left`, and
  // continues in the next call. Here each visited row counts as an element, too. Returns whether it
  // is done.
  bool catch_up(std::size_t variable, uint64_t updates, uint64_t& row, uint64_t& left);
  void update(std::size_t variable, uint64_t step, uint64_t first,
              std::span<const std::byte> gradient, std::optional<double> rate = {});
  // `gradients`: one row for each of `rows`, which must exist. Returns how many rows are done.
  std::size_t update_rows(std::size_t variable, uint64_t step, std::span<const int64_t> rows,
                          const std::byte* gradients, uint64_t& left,
                          std::optional<double> rate = {});
  std::size_t read_rows(std::size_t variable, std::span<const int64_t> rows, std::byte* values,
                        uint64_t& left);

  // A checkpoint has the description of the store, then its memory. No row may have missed updates.
  void write_header(Writer& writer);
  std::vector<std::span<std::byte>> memory();
  // Whether the data that a header describes fits into this memory. If not, `why` has the reason.
  bool fits(Reader& reader, std::string& why) const;
  void take_header(Reader& reader);  // applies a header that fits

 private:
  struct LateRow {
    uint64_t row = 0;
    uint64_t since = 0;  // the number of its updates when it began to catch up
  };
  struct Rule {
    std::string text;
    UpdateRule update;
    uint64_t settles_after = update.settles_after();
  };
  using RuleRef = std::shared_ptr<const Rule>;
  struct Variable {
    StoredSpec spec;
    RuleRef rule;
    bool is_initialized = false;
    uint64_t updates = 0;  // number of updates that have begun
    Zeroed<std::byte> values;
    std::vector<Zeroed<std::byte>> slots;
    // The number of updates of each row since begun_at. Only variables by rows whose rows also
    // change without a gradient have it. A row receives its missing updates, with gradients of
    // zero, when it is used. So a push touches only the rows that it names, and the result equals
    // that of Keras.
    uint64_t begun_at = 0;
    Zeroed<uint64_t> row_updates;
    uint64_t updates_of(uint64_t row) const { return begun_at + row_updates[row]; }
    PushedRates rates;  // rates of updates that rows may have missed
    // Rows that have caught up partially. They have received no gradient meanwhile.
    std::vector<LateRow> late;
  };
  // Reads specs, without memory for values.
  static bool read_header(Reader& reader, std::vector<Variable>& saved);
  static uint64_t noted_bytes(const StoredSpec& spec, const UpdateRule& rule);  // for its rows
  static uint64_t needed_bytes(const StoredSpec& spec, const UpdateRule& rule);
  static Status check_same(const Variable& known, const StoredSpec& spec, const Rule& rule);
  static void begin_at(Variable& variable, uint64_t updates);
  Status find_rule(const std::string& text, RuleRef& rule) const;
  Status declare_one(std::size_t index, const StoredSpec& spec, const RuleRef& rule);
  std::span<std::byte* const> slots_at(Variable& variable, uint64_t first);
  static uint64_t make_up(Variable& variable, uint64_t row, uint64_t since, uint64_t updates,
                          std::span<std::byte* const> slots, uint64_t& left);
  bool catch_up_row(Variable& variable, uint64_t row, uint64_t updates, uint64_t& left);

  std::vector<Variable> variables_;
  const uint64_t bytes_max_;
  uint64_t bytes_ = 0;
  std::size_t filled_ = 0;                  // variables with initialized slots
  uint64_t filled_part_ = 0;                // elements of the next variable, over all its slots
  std::vector<std::byte*> slot_addresses_;  // result of slots_at()
};

}  // namespace rdmacoll::ps
