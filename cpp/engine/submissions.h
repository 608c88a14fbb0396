// The door: any thread hands operations over here, the holder of the baton takes them out.
#pragma once

#include <atomic>
#include <cstdint>
#include <iterator>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "operation/operation.h"

namespace rdmacoll {

class Submissions {
 public:
  // A process set that exists from now on, with this rank in it, or not (-1). `ranks`: its members.
  void open(uint32_t set, int rank, std::vector<int> ranks);
  void close(uint32_t set);  // it does not exist any more

  // Of a request for that set: this rank's number in it, and how many there are. An error: it is no
  // set, or this rank is not in it.
  struct Place {
    int rank = -1;
    int ranks = 0;
  };
  Status find(const Request& request, Place& place) const;
  // What the set calls a rank of the job; -1: it is not in it.
  int rank_in(uint32_t set, int rank) const;

  // Refuses a name that is in flight. Numbers the unnamed, by one counter for all kinds, so that an
  // allreduce here against a broadcast there is a mismatch and not a stall.
  Status add(const OperationRef& operation);
  // The same, and drain(), in one: for whoever has the baton. Refused, it drains nothing.
  Status add_behind(const OperationRef& operation, std::vector<OperationRef>& operations);

  // Appends to `operations`. Cheap when nothing waits.
  void drain(std::vector<OperationRef>& operations) {
    if (!waiting()) return;
    const std::lock_guard lock(mutex_);
    move_to(operations);
  }
  bool waiting() const { return waiting_.load(std::memory_order_seq_cst); }

  // The name may be used again, or who had joined may submit again. Before complete(), since the
  // caller may submit it at once. The next operation that waits for its name is queued.
  void forget(const Operation& operation);

  // The first operation of this one's group has ended. Ok: this one is on its way, or waits for its
  // name. Otherwise it ends with what is returned, and nothing more is known of it here.
  Status release(const OperationRef& operation, Status first);

  // All ranks of the set have joined: its unnamed operations go on with this number.
  void number_from(uint32_t set, int64_t number);

  // From now on every add() is answered with this.
  void close(Status status) {
    const std::lock_guard lock(mutex_);
    closed_ = std::move(status);
  }

 private:
  using Key = std::pair<std::string, int64_t>;
  // Operations of one name, in the order of the calls: each begins when the one before has ended.
  // Those that wait are refusals, what comes behind refusals, and parts of groups.
  struct Line {
    int calls = 0;  // operations in flight or waiting that are no refusals
    bool is_in_flight = false;
    std::vector<OperationRef> waiting;
  };
  struct Door {
    int rank = -1;
    std::vector<int> ranks;
    std::map<Key, Line> lines;
    int64_t unnamed = 0;
    bool has_joined = false;
  };
  Status find_door(const Request& request, Door*& door) const;
  // Gives it its number. `waits`: it is queued later.
  Status number(const OperationRef& operation, bool& waits);
  static Status check_names(const Door& door, const Operation& operation);
  static bool waits_in_line(Door& door, const OperationRef& operation);
  // Of a line that has lost its first operation, or whose first one may begin.
  void advance(Door& door, std::map<Key, Line>::iterator line);
  void queue(OperationRef operation);
  void move_to(std::vector<OperationRef>& operations) {
    waiting_.store(false, std::memory_order_relaxed);
    operations.insert(operations.end(), std::make_move_iterator(queue_.begin()),
                      std::make_move_iterator(queue_.end()));
    queue_.clear();
  }

  mutable std::mutex mutex_;
  std::vector<OperationRef> queue_;
  mutable std::map<uint32_t, Door> doors_;
  Status closed_;
  std::atomic<bool> waiting_{false};
};

}  // namespace rdmacoll
