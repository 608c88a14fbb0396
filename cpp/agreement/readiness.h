// Who is ready for what. Each node of the control tree gathers its own subtree and says upward,
// once, "this operation is ready in my whole subtree"; at the root that means: everywhere. Ranks
// that disagree, and operations that some rank never submits, are found here.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "agreement/descriptor_table.h"
#include "agreement/messages.h"
#include "base/clock.h"
#include "base/status.h"
#include "base/world.h"
#include "operation/operation.h"

namespace rdmacoll {

// For sentences: 1.2 (s).
constexpr double tenths_of_seconds(Nanoseconds time) {
  return static_cast<double>(time / (100 * kMillisecond)) / 10;
}

struct UnitKey {
  std::string name;
  int64_t iteration = 0;

  auto operator<=>(const UnitKey&) const = default;
};

// "'bucket_0'", "operation number 7 of process set 1".
std::string title(const UnitKey& key, const World& world);

// At the root: an operation that every rank has submitted, with equal descriptors.
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
    // How long a mismatch waits for the ranks that have not spoken yet, to name their values too.
    Nanoseconds mismatch_grace = 50 * kMillisecond;
  };
  Readiness(const World& world, const DescriptorTable& table, Limits limits);

  // A record of my own or of a child. False: nonsense (unknown number, not from that subtree).
  bool add(const ReadyRecord& record, Nanoseconds now);
  // Once per progress(): what is late or in conflict.
  void check(Nanoseconds now);
  Nanoseconds next_deadline() const;

  bool has_news() const { return !verdicts_.empty() || !upward_.empty() || !ready_.empty(); }
  std::vector<ReadyRecord> take_upward() { return std::exchange(upward_, {}); }  // not at the root
  std::vector<ReadyUnit> take_ready() { return std::exchange(ready_, {}); }      // at the root
  std::vector<VerdictMessage> take_verdicts() { return std::exchange(verdicts_, {}); }
  std::vector<std::string> take_warnings() { return std::exchange(warnings_, {}); }

  // "allreduce 'x': waiting for ranks 2, 3" per line.
  std::string state() const;
  std::size_t pending() const { return pending_.size(); }
  // An operation has ended with an error and some rank has not submitted it yet, or waits for so
  // long.
  bool is_late(Nanoseconds now, Nanoseconds limit) const;
  // Everybody says again what it is ready for, and whether it has joined.
  void forget();

  // Ranks that have joined are ready for every sum and barrier, with nothing to give. Below the
  // root they are only told of; the root counts them.
  bool has_joined() const { return !joined_.empty(); }
  bool have_all_joined() const { return joined_.size() == world_.members.size(); }
  // The number that a rank that has joined would go on with.
  std::optional<int64_t> number_joined_with(int rank) const {
    const auto found = joined_.find(rank);
    return found == joined_.end() ? std::nullopt : std::optional(found->second);
  }
  AllJoinedMessage all_joined() const;
  void part();  // nobody has joined any more
  // All ranks have submitted it, and say so again: also who has joined since.
  void await_all(const UnitKey& key) { said_by_all_.insert(key); }
  bool awaits_all() const { return !said_by_all_.empty(); }
  // This rank's operation has ended: the next one of its name is another.
  void ended(const UnitKey& key) {
    if (!warned_.empty()) warned_.erase(key);
  }

 private:
  struct Contribution {
    int origin;
    bool subtree;
    std::size_t variant;
    std::size_t listing;  // 0: none, or the one that it has said before
  };
  struct Pending {
    std::vector<std::string> variants;  // descriptors; more than one is a conflict
    std::vector<Contribution> contributions;
    std::vector<std::pair<int32_t, std::vector<int64_t>>> rows;
    std::vector<std::string> listings{""};  // of names; those that differ
    std::string labels;                     // of the first rank that has said any
    int ranks = 0;
    Nanoseconds since = 0;
    Nanoseconds age = 0;            // of the oldest record when it came
    bool piecemeal = false;         // below the root: what comes is passed on one by one
    Status verdict;                 // at the root: whoever comes late is told at once
    std::vector<ReadyRecord> held;  // of ranks that have heard the verdict: their next operation
    Nanoseconds held_since = 0;
  };

  bool is_root() const { return world_.rank == 0; }
  bool add(const ReadyRecord& record, Nanoseconds now, bool is_passed_on);
  std::vector<int> ranks_of(int origin, bool subtree) const;
  std::vector<int> missing(const Pending& pending) const;
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
  std::string describe_ranks(const std::vector<int>& ranks) const;
  std::vector<int> numbers(std::vector<int> ranks) const;

  // Ranks whose loops are not at the same iteration: readiness_loops.cc.
  const UnitKey* other_iteration(const UnitKey& key, const std::vector<int>& absent) const;
  std::string iterations_apart(const UnitKey& key, const UnitKey& other, Nanoseconds age) const;

  // Names of variables, whose order has to agree: readiness_names.cc.
  struct Listed {
    std::string ranks;  // "rank 0"
    std::string names;
  };
  std::vector<Listed> listed(const UnitKey& key, const Pending& pending) const;
  Status check_order(const UnitKey& key, const Pending& pending, bool may_warn);
  void remember_names(const UnitKey& key, const Pending& pending);
  std::vector<ShownTensor> differing(const Pending& pending, std::size_t variant) const;

  // Ranks that have joined: readiness_join.cc.
  bool add_join(const ReadyRecord& record);
  void go_on_without_data(const UnitKey& key);
  std::vector<int> joined_without(const Pending& pending) const;
  Status needs_data(const UnitKey& key, const Pending& pending,
                    const std::vector<int>& without) const;
  void check_join(Nanoseconds now);
  Nanoseconds join_deadline() const;

  const World& world_;
  const DescriptorTable& table_;
  Limits limits_;
  int subtree_ranks_;
  std::map<UnitKey, Pending> pending_;
  std::map<std::string, std::string> labels_;  // by name: of operations whose descriptor is known
  // At the root: the names that ranks have said last, for those that do not say them again. By the
  // operation's name, or what describes it.
  std::map<std::string, std::string> listings_;
  bool has_warned_of_names_ = false;
  std::set<UnitKey> warned_;
  std::vector<ReadyRecord> upward_;
  std::vector<ReadyUnit> ready_;
  std::vector<VerdictMessage> verdicts_;
  std::vector<std::string> warnings_;

  std::map<int, int64_t> joined_;  // the number that each would go on with
  int last_joined_ = -1;
  std::set<UnitKey> said_by_all_;
  Nanoseconds join_moved_at_ = 0;  // when somebody has submitted or joined last
  bool join_warned_ = false;
};

}  // namespace rdmacoll
