// The terms of which a row's closed-form cost within a node is made. All times are those of one
// segment, in microseconds. Pure.
#pragma once

#include <algorithm>
#include <bit>

#include "collectives/choose.h"
#include "collectives/node_cost.h"
#include "collectives/schedule.h"

namespace rdmacoll {

class InNode {
 public:
  // `segment_bytes`: the length of a segment, of which the operation has one or several.
  InNode(const NodeMemory& memory, const Facts& facts, AlgorithmRow::Result result,
         uint64_t segment_bytes);

  int ranks() const { return ranks_; }
  // ceil(log2 p): the rounds in which blocks of ranks double.
  int doublings() const { return std::bit_width(static_cast<unsigned>(ranks_ - 1)); }
  // floor(log2 p): the most messages one after the other in a binomial tree.
  int depth() const { return std::bit_width(static_cast<unsigned>(ranks_)) - 1; }
  bool is_even() const { return facts_.is_even; }
  bool is_on_gpus() const { return facts_.on_gpus; }
  bool stages_gpus() const { return facts_.stages_gpus; }
  bool is_in_place() const { return facts_.in_place; }

  double segment() const { return segment_; }
  // Whether so much data is more than a message carries.
  bool exceeds_message(double bytes) const { return memory_.shows(bytes); }
  double part() const { return segment_ / ranks_; }
  // The length of a partial sum of so much data: 16-bit floats are added as float32.
  double partial(double bytes) const { return is_wide_ ? kWide * bytes : bytes; }

  // Processor time to post or to take so many messages. Shown data is released as well.
  // `bytes`: the data that each of them is about.
  double messages(int count, double bytes) const {
    return memory_.message_us_of(segment_, bytes) * count;
  }
  // Caller's memory is copied to the pool, unless peers read it in place.
  double pack(double bytes) const {
    return facts_.in_place ? 0 : cost_.copy_us(bytes, DataLocation::caller, DataLocation::pool);
  }
  // Parts that lie apart are gathered in the pool.
  double gather(double bytes) const {
    return cost_.copy_us(bytes, DataLocation::caller, DataLocation::pool);
  }
  // A peer's data is copied to the caller's memory, or to the pool, to be passed on.
  double read(double bytes) const { return cost_.copy_us(bytes, peer_, DataLocation::caller); }
  double read_to_pool(double bytes) const {
    return cost_.copy_us(bytes, DataLocation::peer_pool, DataLocation::pool);
  }
  // Data or an answer is written to a lent slot.
  double write_lent(double bytes) const {
    return cost_.copy_us(bytes, DataLocation::caller, DataLocation::lent);
  }
  double unpack(double bytes) const {
    return cost_.copy_us(bytes, DataLocation::pool, DataLocation::caller);
  }
  double copy(double bytes) const {
    return cost_.copy_us(bytes, DataLocation::caller, DataLocation::caller);
  }
  // Own data and that of so many peers is added up in the caller's memory.
  double sum(double bytes, int peers) const {
    return cost_.reduce_us(bytes, DataLocation::caller, peer_, peers, DataLocation::caller);
  }
  // A partial sum, made where peers read it.
  double sum_to_pool(double bytes) const {
    return cost_.reduce_us(bytes, DataLocation::pool, DataLocation::peer_pool, 1,
                           DataLocation::pool);
  }
  // The time for which a rank's cache serves so many readers of the same data.
  double serve(double bytes, int readers) const {
    return facts_.in_place ? 0 : readers * cost_.handed_us(bytes);
  }

  // The wait for a message, or for the news that it was read.
  double round() const { return memory_.round_us_of(segment_); }
  // The wait for the messages of `peers` ranks. All but the last are taken while that one is under
  // way, unless others have the core meanwhile.
  double round(int peers, double bytes) const {
    if (memory_.shares_core()) return round();
    return round() - std::min(round(), messages(std::max(0, peers - 1), bytes));
  }

  // Whether a rank keeps its core while it waits for messages.
  bool has_core() const { return !memory_.shares_core(); }

  bool is_one_segment() const { return segments_ == 1; }
  // The time of all segments, if each rank works for `work` in each of them. `waits` counts once,
  // since segments overlap.
  double time(double work, double waits) const { return segments_ * work + waits; }
  // The same if a segment passes several ranks in turn, which takes `passage`. Each later one
  // follows by the time of the busiest rank, which works for `work`.
  double time(double passage, double work, double waits) const {
    return passage + (segments_ - 1) * work + waits;
  }
  // Work of a rank while the others of its core have none.
  double alone(double work) const { return work / share_; }
  // The work of the busiest processor, if the root and the other ranks have so much to do. A rank
  // that has less gives its core away.
  double busiest(double root, double other) const {
    return std::max(alone(root + (share_ - 1) * other), other);
  }
  // The same for a broadcast. The root first copies the segments in flight to its own result, so
  // the others get the first one later.
  double time_of_broadcast(double passage, double root, double others, double waits) const {
    const double followers = segments_ - 1;
    if (memory_.shares_core()) return time(passage, busiest(root, others), waits);
    const double copies = std::min<double>(followers, kSegmentsInFlight - 1) * copy(segment_);
    return passage + std::max(followers * root, copies + followers * others) + waits;
  }

 private:
  const NodeMemory memory_;
  const Facts& facts_;
  int ranks_;
  double share_;  // how many ranks share a processor
  bool is_wide_;
  double segments_, segment_;
  DataLocation peer_;
  NodeCost cost_;
};

}  // namespace rdmacoll
