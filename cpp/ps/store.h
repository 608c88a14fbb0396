// What one server owns: its shares of the variables, with what the optimizer keeps beside them.
// One thread calls at a time, so there are no locks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "base/status.h"
#include "base/wire.h"
#include "base/zeroed.h"
#include "ps/pushed_rates.h"
#include "ps/update.h"

namespace rdmacoll::ps {

// A variable as a server sees it: the elements of all its shares there, in a row.
struct StoredSpec {
  std::string name;
  Dtype dtype = Dtype::float32;
  bool decays = true;         // whether the rule's weight decay is for it
  uint64_t elements = 0;      // here
  uint64_t row_elements = 0;  // of a variable that is pushed and pulled by rows; else 0
  std::vector<int64_t> dims;  // of the whole variable
  uint64_t shares = 0;        // which parts of it they are: equal where these are the same

  uint64_t bytes() const { return elements * size_of(dtype); }
  uint64_t rows() const { return row_elements == 0 ? 0 : elements / row_elements; }
  uint64_t row_bytes() const { return row_elements * size_of(dtype); }
  bool operator==(const StoredSpec&) const = default;
};

// For sentences: "w (float32, shape (9, 5), 45 elements here, by rows)".
std::string text_of(const StoredSpec& spec);
// Of one variable, as many elements, which are others.
bool are_other_parts(const StoredSpec& one, StoredSpec other);
void write(const StoredSpec& spec, Writer& writer);
StoredSpec read_spec(Reader& reader);  // the reader fails where it is none

inline constexpr std::size_t kVariablesMax = 1u << 20;
// Elements that may be updated before others have to get their turn: some milliseconds.
inline constexpr uint64_t kElementsAtOnce = 1u << 20;

class Store {
 public:
  // Refuses what would take more than `bytes_max`: who gets more from the system than there is, is
  // ended by it later, without a word.
  explicit Store(uint64_t bytes_max = physical_memory_bytes()) : bytes_max_(bytes_max) {}
  static uint64_t physical_memory_bytes();

  // Variables from number `first` on, which go by one rule: the next ones, or such as are known,
  // with the same rule and specs: a MismatchError where they differ. What is refused leaves nothing
  // behind.
  Status declare(const std::string& rule, std::size_t first, std::span<const StoredSpec> specs);

  std::size_t variables() const { return variables_.size(); }
  // Slots that do not begin as zeros are filled, as long as elements are `left`. Whether all are:
  // before that nobody uses what was declared.
  bool fill(uint64_t& left);
  bool is_filled() const { return filled_ == variables_.size(); }
  const StoredSpec& spec(std::size_t variable) const { return variables_[variable].spec; }
  uint64_t bytes() const { return bytes_; }  // of values, slots and what is noted of rows

  // slot 0: the values; from 1 on, what the optimizer keeps beside them.
  std::size_t slots(std::size_t variable) const { return variables_[variable].slots.size(); }
  void write(std::size_t variable, std::size_t slot, uint64_t first,
             std::span<const std::byte> data);
  std::span<const std::byte> stored(std::size_t variable, std::size_t slot, uint64_t first,
                                    std::size_t bytes) const;
  // Once all values are written, which have had so many updates elsewhere. Until then nobody may
  // read or update.
  void set_initialized(std::size_t variable, uint64_t updates = 0);
  bool is_initialized(std::size_t variable) const { return variables_[variable].is_initialized; }

  // Whether each of its updates has to bring a learning rate, since the rule has none.
  bool needs_rate(std::size_t variable) const {
    return variables_[variable].rule->update.needs_rate();
  }
  // The number of the update that begins now. Each variable counts its own. `rate`: the learning
  // rate that it brings, also below.
  uint64_t begin_update(std::size_t variable, std::optional<double> rate = {});
  uint64_t updates(std::size_t variable) const { return variables_[variable].updates; }
  // Before a whole variable is updated or read: its rows from `row` on get the updates before
  // number `updates` that they have missed. That may be a lot of work, as in the two below: all
  // stop when no element is `left` to be updated, and go on in the next call. Here a row that is
  // looked at counts as one, too. Whether it is done.
  bool catch_up(std::size_t variable, uint64_t updates, uint64_t& row, uint64_t& left);
  void update(std::size_t variable, uint64_t step, uint64_t first,
              std::span<const std::byte> gradient, std::optional<double> rate = {});
  // `gradients`: a row for each of `rows`, which are all known to exist. How many were done.
  std::size_t update_rows(std::size_t variable, uint64_t step, std::span<const int64_t> rows,
                          const std::byte* gradients, uint64_t& left,
                          std::optional<double> rate = {});
  std::size_t read_rows(std::size_t variable, std::span<const int64_t> rows, std::byte* values,
                        uint64_t& left);

  // For a checkpoint: what is stored, and the memory that it is stored in. Nothing may be missed.
  void write_header(Writer& writer);
  std::vector<std::span<std::byte>> memory();
  // Whether what a header describes may come into this memory, or why not.
  bool fits(Reader& reader, std::string& why) const;
  void take_header(Reader& reader);  // one that fits

 private:
  struct LateRow {
    uint64_t row = 0;
    uint64_t since = 0;  // the updates that it had had when it began to
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
    uint64_t updates = 0;  // begun
    Zeroed<std::byte> values;
    std::vector<Zeroed<std::byte>> slots;
    // Of a variable by rows, where rows without a gradient change as well: the updates that each
    // has had since the variable had so many. It gets the others, with gradients of zero, when
    // somebody wants it; so nobody touches more rows than a push names, and yet all is as Keras
    // has it.
    uint64_t begun_at = 0;
    Zeroed<uint64_t> row_updates;
    uint64_t updates_of(uint64_t row) const { return begun_at + row_updates[row]; }
    PushedRates rates;  // of the updates that rows may have missed
    // Rows that have caught up by a part. No gradient has come to them meanwhile.
    std::vector<LateRow> late;
  };
  // Without memory.
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
  std::size_t filled_ = 0;                  // variables whose slots are
  uint64_t filled_part_ = 0;                // elements, over all slots of the next one
  std::vector<std::byte*> slot_addresses_;  // of slots_at()
};

}  // namespace rdmacoll::ps
