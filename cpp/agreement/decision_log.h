// The one place where it is decided what runs next. The root forms decisions; everybody, the root
// included, accepts them in the order of their sequence and obeys.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "agreement/descriptor_table.h"
#include "agreement/messages.h"
#include "agreement/readiness.h"
#include "base/world.h"
#include "collectives/choose.h"
#include "operation/operation.h"

namespace rdmacoll {

class DecisionLog {
 public:
  struct Rules {
    Tuning tuning;
    bool canonical = false;
    std::vector<Forced> forced;
    std::optional<uint64_t> segment_bytes;
    int servers = 0;
    uint64_t segment_bytes_max = UINT64_MAX;
    // Loose operations up to this size share a batch, up to that many bytes together.
    uint64_t fuse_unit_bytes = 64 << 10;
    uint64_t fuse_batch_bytes = 1 << 20;
  };
  DecisionLog(const World& world, DescriptorTable& table, Rules rules);

  // Root: what has become ready, in the order of readiness. Returns -1, or a rank whose numbers of
  // rows do not fit the operation.
  int offer(ReadyUnit unit);
  // Root: decisions for as many batches as have `room`, with the numbers that they need first.
  struct Formed {
    std::vector<InternMessage> interns;
    Decision decision;
    bool is_cut_short = false;  // the pool allows segments of a small part of what would be best
  };
  std::optional<Formed> form(bool one_node);
  bool waiting() const { return !offered_.empty(); }

  // Everybody: false when the sequence has a gap.
  bool accept(const Decision& decision) { return decision.sequence == accepted_++; }
  // Root: a plan decides from now on; it has decided up to what was accepted.
  void withdraw_offers() { offered_.clear(); }
  void go_on() { formed_ = accepted_; }
  uint64_t accepted() const { return accepted_; }

 private:
  struct Offer {
    ReadyUnit unit;
    Descriptor descriptor;
    uint64_t bytes;
    int64_t most_rows;  // as in Decision
    bool is_even;       // alltoall: all give all as much
  };
  bool fuses(const Offer& offer, uint64_t bytes, bool one_node) const;
  bool may_share(const Offer& a, const Offer& b) const;
  Facts facts_of(const Offer& offer, uint64_t bytes, bool one_node) const;
  Choice choose(const Offer& offer, uint64_t bytes, bool one_node) const;

  const World& world_;
  Spread spread_;
  DescriptorTable& table_;
  Rules rules_;
  std::deque<Offer> offered_;
  uint64_t formed_ = 0;
  uint64_t accepted_ = 0;
};

}  // namespace rdmacoll
