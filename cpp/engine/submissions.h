// The queue of submitted operations. Any thread adds operations, and the holder of the baton takes
// them.
#pragma once

#include <atomic>
#include <cstdint>
#include <iterator>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/log.h"
#include "base/set_world.h"
#include "operation/operation.h"

namespace rdmacoll {

class Submissions {
 public:
  explicit Submissions(Log log) : log_(log) {}

  // Adds a process set. `rank`: this rank in it, or none. `members`: without servers.
  void open(uint32_t set, SetRank rank, SetMembers members);
  void close(uint32_t set);  // removes the set

  // Validates a request. Its set must exist, and contain this rank.
  Status check(const Request& request) const;
  // The rank of a process in a set, or none if the set does not contain it.
  SetRank rank_in(uint32_t set, JobRank rank) const;

  // Refuses a name that is in flight. Unnamed operations of all kinds share one counter. So an
  // allreduce on one rank and a broadcast on another are a mismatch, not a stall.
  Status add(const OperationRef& operation);
  // add() and drain() in one call, for the holder of the baton. Drains nothing if the operation is
  // refused.
  Status add_and_drain(const OperationRef& operation, std::vector<OperationRef>& operations);

  // Appends the waiting operations to `operations`. Cheap if there are none.
  void drain(std::vector<OperationRef>& operations) {
    if (!waiting()) return;
    const std::lock_guard lock(mutex_);
    move_to(operations);
  }
  bool waiting() const { return waiting_.load(std::memory_order_seq_cst); }

  // Releases the operation's name, or ends this rank's join. Called before complete(), since the
  // caller may submit the name again at once. Queues the next operation that waits for the name.
  void forget(const Operation& operation);

  // The first operation of this one's group has ended with `first`. If ok, this operation is
  // queued, or waits for its name. Otherwise it ends with the returned status, and is removed here.
  Status release(const OperationRef& operation, Status first);

  // All ranks of the set have joined. Its unnamed operations continue with this number.
  void set_next_number(uint32_t set, int64_t number);

  // From now on every add() returns this status.
  void close(Status status) {
    const std::lock_guard lock(mutex_);
    closed_ = std::move(status);
  }

 private:
  using Key = std::pair<std::string, int64_t>;
  // Operations of one name, in the order of the calls. Each begins when the one before has ended.
  // Refusals, operations behind refusals, and parts of groups may wait.
  struct NameQueue {
    int calls = 0;  // operations in flight or waiting, except refusals
    bool is_in_flight = false;
    std::vector<OperationRef> waiting;
  };
  struct SetState {
    SetRank rank;
    SetMembers members;
    std::map<Key, NameQueue> by_name;
    int64_t unnamed = 0;
    bool has_joined = false;
    // The thread that submitted the last unnamed operation. For each of the last 64: whether it
    // came from another thread than the one before.
    std::thread::id thread;
    uint64_t changes = 0;
    bool has_warned = false;
  };
  Status find_set(const Request& request, SetState*& state) const;
  // Warns once if threads take turns in submitting unnamed operations.
  void watch_threads(SetState& state) const;
  // Numbers the operation. `waits`: the operation is queued later.
  Status number(const OperationRef& operation, bool& waits);
  static Status check_names(const SetState& state, const Operation& operation);
  static bool enter_name_queue(SetState& state, const OperationRef& operation);
  // Queues the first operation of a name's queue if it may begin, or removes an empty queue.
  void advance(SetState& state, std::map<Key, NameQueue>::iterator name_queue);
  void queue(OperationRef operation);
  void move_to(std::vector<OperationRef>& operations) {
    waiting_.store(false, std::memory_order_relaxed);
    operations.insert(operations.end(), std::make_move_iterator(queue_.begin()),
                      std::make_move_iterator(queue_.end()));
    queue_.clear();
  }

  const Log log_;
  mutable std::mutex mutex_;
  std::vector<OperationRef> queue_;
  mutable std::map<uint32_t, SetState> sets_;
  Status closed_;
  std::atomic<bool> waiting_{false};
};

}  // namespace rdmacoll
