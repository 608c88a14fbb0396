// Gathers which ranks are ready for which operation. Each node of the control tree gathers its
// subtree, and reports once that an operation is ready in the whole subtree. At the root this means
// on all ranks. Mismatches and operations that a rank never submits are detected here.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "agreement/descriptor_table.h"
#include "agreement/messages.h"
#include "base/clock.h"
#include "base/set_world.h"
#include "base/status.h"
#include "operation/operation.h"

namespace rdmacoll {

// For messages: seconds with one decimal.
constexpr double tenths_of_seconds(Nanoseconds time) {
  return static_cast<double>(time / (100 * kMillisecond)) / 10;
}

struct UnitKey {
  std::string name;
  int64_t iteration = 0;

  auto operator<=>(const UnitKey&) const = default;
};
inline UnitKey key_of(const Operation& operation) {
  return {operation.request.name, operation.request.iteration};
}

// "'bucket_0'", "operation number 7 of process set 1".
std::string title(const UnitKey& key, const SetWorld& world);

// Root: an operation that every rank has submitted, with equal descriptors.
struct ReadyUnit {
  UnitKey key;
  std::string descriptor;
  std::vector<std::vector<int64_t>> rows;  // as in Decision
};

class Readiness {
 public:
  struct Limits {
    Nanoseconds stall_warning = 10 * kSecond;
    Nanoseconds stall_error = 600 * kSecond;
    // A mismatch is reported after this delay, so that late ranks can still add their values.
    Nanoseconds mismatch_grace = 50 * kMillisecond;
  };
  Readiness(const SetWorld& world, const DescriptorTable& table, Limits limits);

  // Adds a record of this rank or of a child. Returns false if its descriptor number is unknown, or
  // if it counts a rank twice.
  bool add(const ReadyRecord& record, Nanoseconds now);
  // Detects late operations and conflicts. Call it every kCheckInterval. `is_held_up`: at the
  // root, operations that all ranks have wait until ranks have caught up after a plan.
  void check(Nanoseconds now, bool is_held_up = false);
  Nanoseconds next_deadline() const;

  bool has_news() const { return !verdicts_.empty() || !upward_.empty() || !ready_.empty(); }
  std::vector<ReadyRecord> take_upward() { return std::exchange(upward_, {}); }  // not at the root
  std::vector<ReadyUnit> take_ready() { return std::exchange(ready_, {}); }      // at the root
  std::vector<VerdictMessage> take_verdicts() { return std::exchange(verdicts_, {}); }
  std::vector<std::string> take_warnings() { return std::exchange(warnings_, {}); }

  // One line for each pending operation: "allreduce 'x': waiting for ranks 2, 3".
  std::string state() const;
  std::size_t pending() const { return pending_.size(); }
  // Whether a pending operation has ended with an error, or is older than `limit`.
  bool is_late(Nanoseconds now, Nanoseconds limit) const;
  // Drops all state, including joins. All ranks send their readiness again.
  void forget();

  // Ranks that have joined are ready for every sum and barrier, without data. Below the root their
  // joins are only passed on. The root counts them.
  bool has_joined() const { return !joined_.empty(); }
  bool have_all_joined() const { return joined_.size() == static_cast<std::size_t>(world_.size()); }
  // The number of the next unnamed operation of a rank that has joined.
  std::optional<int64_t> number_joined_with(SetRank rank) const {
    const auto found = joined_.find(rank);
    return found == joined_.end() ? std::nullopt : std::optional(found->second);
  }
  AllJoinedMessage all_joined() const;
  void part();  // ends the join: no rank has joined any more
  // All ranks have submitted this operation and repeat their records, together with their joins.
  void await_all(const UnitKey& key) { said_by_all_.insert(key); }
  bool awaits_all() const { return !said_by_all_.empty(); }
  // This rank's operation has ended. The next one of that name is a new one.
  void ended(const UnitKey& key) {
    if (!warned_.empty()) warned_.erase(key);
  }

 private:
  struct Contribution {
    SetRank origin;
    bool subtree;
    std::size_t variant;
    std::size_t listing;  // 0: none, or the same as sent before
  };
  struct Pending {
    std::vector<std::string> variants;  // descriptors; several mean a conflict
    std::vector<Contribution> contributions;
    std::vector<std::pair<SetRank, std::vector<int64_t>>> rows;
    std::vector<std::string> listings{""};  // distinct listings of names
    std::string labels;                     // from the first rank that sent any
    int ranks = 0;
    Nanoseconds since = 0;
    Nanoseconds age = 0;            // the largest age of a record at its arrival
    bool piecemeal = false;         // below the root: records are passed on one by one
    Status verdict;                 // root: a late rank receives it at once
    std::vector<ReadyRecord> held;  // next operations of ranks that have heard the verdict
    Nanoseconds held_since = 0;
  };

  bool is_root() const { return world_.is_root(); }
  bool add(const ReadyRecord& record, Nanoseconds now, bool is_passed_on);
  std::vector<SetRank> ranks_of(SetRank origin, bool subtree) const;
  std::vector<SetRank> missing(const Pending& pending) const;
  bool has_spoken(const Pending& pending, const ReadyRecord& record) const;
  static bool is_held(const Pending& pending, const ReadyRecord& record);
  static bool counts_twice(const Pending& pending, const ReadyRecord& record);
  void pass_on(const UnitKey& key, Pending& pending, std::size_t from);
  void complete(const UnitKey& key, Pending& pending);
  void judge(const UnitKey& key, Pending& pending, Status verdict);
  Status mismatch(const UnitKey& key, const Pending& pending);
  void check_stall(const UnitKey& key, Pending& pending, Nanoseconds now);
  ReadyRecord record(const UnitKey& key, const Pending& pending, const Contribution& of) const;
  void note_labels(const UnitKey& key, Pending& pending, const std::string& labels);
  const std::string& labels(const UnitKey& key, const Pending& pending) const;
  std::string tensor(const UnitKey& key, const Pending& pending) const;
  std::string label(const UnitKey& key, const Pending& pending) const;
  std::string describe_ranks(const std::vector<SetRank>& ranks) const;
  std::vector<JobRank> numbers(const std::vector<SetRank>& ranks) const;

  // Ranks that have submitted different operations, or are at different iterations of a loop:
  // readiness_loops.cc.
  void judge_stalled(const UnitKey& key, Pending& pending, const std::vector<SetRank>& absent,
                     const std::string& sentence, std::string_view cure);
  std::string_view cure_of_catching_up(Nanoseconds now) const;
  bool is_apart(const Pending& other, const std::vector<SetRank>& absent) const;
  std::string submitted_instead(const std::vector<SetRank>& absent, Nanoseconds now) const;
  const UnitKey* other_iteration(const UnitKey& key, const std::vector<SetRank>& absent) const;
  std::string iterations_apart(const UnitKey& key, const UnitKey& other, Nanoseconds age) const;

  // The order of variable names: readiness_names.cc.
  struct Listed {
    std::string ranks;  // "rank 0"
    std::string names;
  };
  // The listings that ranks have sent with the last operation of a name.
  struct KnownNames {
    static constexpr std::size_t kNone = SIZE_MAX;
    std::vector<std::string> texts;    // listings that differ in more than counters
    std::vector<std::size_t> of_rank;  // the index in `texts` of each rank of the set, or kNone
    const std::string* of(SetRank rank) const;
  };
  std::map<std::string, std::vector<SetRank>> ranks_by_names(const UnitKey& key,
                                                             const Pending& pending) const;
  std::vector<Listed> listed(const UnitKey& key, const Pending& pending) const;
  Status check_order(const UnitKey& key, const Pending& pending, bool may_warn);
  void remember_names(const UnitKey& key, const Pending& pending);
  std::vector<ShownTensor> differing(const Pending& pending, std::size_t variant) const;

  // Ranks that have joined: readiness_join.cc.
  bool add_join(const ReadyRecord& record);
  void go_on_without_data(const UnitKey& key);
  std::vector<SetRank> joined_without(const Pending& pending) const;
  Status needs_data(const UnitKey& key, const Pending& pending,
                    const std::vector<SetRank>& without) const;
  void check_join(Nanoseconds now);
  Nanoseconds join_deadline() const;

  const SetWorld& world_;
  const DescriptorTable& table_;
  Limits limits_;
  int subtree_ranks_;
  std::map<UnitKey, Pending> pending_;
  std::map<std::string, std::string> labels_;  // by name, for operations with a known descriptor
  // Root: for ranks that do not repeat their listing. Keyed by the operation's name, or by its
  // descriptor if it has none.
  std::map<std::string, KnownNames> known_names_;
  bool has_warned_of_names_ = false;
  std::set<UnitKey> warned_;
  std::vector<ReadyRecord> upward_;
  std::vector<ReadyUnit> ready_;
  std::vector<VerdictMessage> verdicts_;
  std::vector<std::string> warnings_;

  std::map<SetRank, int64_t> joined_;  // by rank: its next number
  SetRank last_joined_;
  std::set<UnitKey> said_by_all_;
  std::optional<Nanoseconds> held_up_at_;  // when operations last waited until ranks catch up
  Nanoseconds join_moved_at_ = 0;          // when a rank last submitted or joined
  bool join_warned_ = false;
};

}  // namespace rdmacoll
