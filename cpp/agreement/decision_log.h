// Decides which operations run next. The root forms decisions. All ranks, including the root,
// accept and run them in the order of their sequence.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <tuple>
#include <vector>

#include "agreement/descriptor_table.h"
#include "agreement/messages.h"
#include "agreement/readiness.h"
#include "agreement/trial_times.h"
#include "agreement/trials.h"
#include "base/clock.h"
#include "base/copy_costs.h"
#include "base/set_world.h"
#include "collectives/choose.h"
#include "operation/operation.h"

namespace rdmacoll {

// The memory of each other that the ranks of a set see.
struct Visibility {
  bool one_node = false;      // the pools of all
  bool callers = false;       // also the callers' memory, which a system call reads
  bool gpus = false;          // also the work memory on GPUs
  CopyCosts gpu_copies = {};  // this rank's GPUs
};

class DecisionLog {
 public:
  struct Rules {
    Tuning tuning;
    bool tries_ways = false;   // whether Trials decide how sums move within a node
    bool tries_places = true;  // ... also whether large sums are staged or read in place
    bool looks_again = false;  // ... and take place again when planned sums take another time
    bool canonical = false;
    std::vector<Forced> forced;
    std::optional<uint64_t> segment_bytes;
    int servers = 0;
    uint64_t segment_room = UINT64_MAX;  // memory of the pool for a segment in flight
    // Operations up to fuse_unit_bytes share a batch of at most fuse_batch_bytes.
    uint64_t fuse_unit_bytes = 64 << 10;
    uint64_t fuse_batch_bytes = 1 << 20;
  };
  DecisionLog(const SetWorld& world, DescriptorTable& table, Rules rules);

  // Root: appends an operation that became ready. `on_gpu`: the root's tensors lie on a GPU.
  // Returns the first rank whose row counts do not fit the operation, or none.
  SetRank offer(ReadyUnit unit, bool on_gpu = false);
  // Root: the next decision, and the descriptor numbers that must be sent before it.
  struct Formed {
    std::vector<InternMessage> interns;
    Decision decision;
    bool is_cut_short = false;  // the pool allows only a small part of the best segment size
  };
  // None: no operation is ready, or the next one is a trial, or comes after one. A trial runs
  // alone, so that its time is its own. `is_idle`: no decision is under way on this rank. `now`:
  // the present time, for trials.
  std::optional<Formed> form(const Visibility& visibility, bool is_idle = true,
                             Nanoseconds now = 0);
  bool waiting() const { return !offered_.empty(); }
  bool has_offer(const UnitKey& key) const;
  bool has_trials() const { return !trials_.is_empty(); }
  // Root: all sizes have their trials again.
  void look_again() { trials_.restart(); }

  // All ranks: the times of trials. began() to has_run(): a trial runs on this rank.
  void began(uint64_t sequence, Nanoseconds now) { times_.began(sequence, now); }
  bool is_timed(uint64_t sequence) const { return times_.is_running(sequence); }
  void has_run(uint64_t sequence, Nanoseconds now) {
    times_.ended(sequence, now);
    judge();
  }
  // The times of ranks below.
  void hear(const std::vector<TrialTime>& times) {
    for (const TrialTime& time : times) times_.add(time);
    judge();
  }
  // The times that go up.
  std::vector<TrialTime> take_times() { return times_.take(); }

  // All ranks. Returns false if the sequence has a gap.
  bool accept(const Decision& decision) { return decision.sequence == accepted_++; }
  // Root: withdraw_offers() drops the offers when a plan begins. Times no longer travel then.
  // go_on() continues behind the decisions that were accepted meanwhile.
  void withdraw_offers() {
    offered_.clear();
    times_.forget();
    trials_.forget_times();
  }
  void go_on() { formed_ = accepted_; }
  uint64_t accepted() const { return accepted_; }

 private:
  struct Offer {
    ReadyUnit unit;
    Descriptor descriptor;
    uint64_t bytes;
    uint64_t cut_bytes;  // the bytes that are cut in segments, of the rank that has most
    int64_t most_rows;   // as in Decision
    bool is_even;        // alltoall: all pairs exchange the same number of rows
    bool on_gpu;
  };
  uint64_t cut_bytes_of(const Offer& offer) const;
  uint64_t segment_bytes_max(const Offer& offer, Algorithm algorithm) const;
  bool fuses(const Offer& offer, uint64_t bytes);
  std::size_t batch_at_front();
  bool may_share(const Offer& a, const Offer& b) const;
  Facts facts_of(const Offer& offer, uint64_t bytes) const;
  // A way in which a decision about `bytes` can move.
  struct Way {
    Choice choice;
    bool in_place = false;
  };
  struct Ways {
    std::vector<Way> ways;  // the usual one first
    Trials::Ways numbers;
  };
  // The facts that decide the ways of a decision with trials: the kind, wide partial sums, a batch,
  // a shared result, equal parts, visible callers' memory, and the bytes.
  using WaysKey = std::tuple<Kind, bool, bool, bool, bool, bool, uint64_t>;
  Way way_of(const Facts& facts, AlgorithmRow::Result result, bool in_place);
  bool may_try(const Offer& offer, uint64_t bytes) const;
  void judge();
  const Ways& ways_of(const Offer& offer, uint64_t bytes, uint64_t bytes_of_rank);
  Ways find_ways(const Offer& offer, uint64_t bytes, uint64_t bytes_of_rank);

  const SetWorld& world_;
  std::vector<int> nodes_;
  Spread spread_;
  DescriptorTable& table_;
  Rules rules_;
  Visibility visibility_;  // as in form()
  Choices choices_;
  // Formulas of all rivals take up to a tenth of a small sum's time outside of plans.
  std::map<WaysKey, Ways> known_ways_;
  Ways other_ways_;                                        // the last ones without trials
  Trials trials_{rules_.tuning.trial_row, world_.size()};  // at the root
  TrialTimes times_;
  std::deque<Offer> offered_;
  uint64_t formed_ = 0;
  uint64_t accepted_ = 0;
};

}  // namespace rdmacoll
