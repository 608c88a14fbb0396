// The gate of the agreement. Each message of another rank is checked against the state of this rank
// before it has any effect. A message that does not fit is its sender's fault. A failed assertion
// behind the gate is a bug of this process.
//
// Pure: the gate knows the set and its state of agreement, and no transport.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "agreement/catch_up.h"
#include "agreement/decision_log.h"
#include "agreement/descriptor_table.h"
#include "agreement/messages.h"
#include "agreement/plan.h"
#include "agreement/readiness.h"
#include "base/world.h"
#include "operation/operation.h"

namespace rdmacoll {

// The largest operation of one rank, in bytes. A process has 47 bits of addresses by default, on
// which inputs and results must both find room. Sums over the ranks of any world fit 64 bits.
inline constexpr uint64_t kOperationBytesMax = uint64_t{1} << 46;

class Gate {
 public:
  struct Facts {
    const World& world;  // the set, with this process's rank in it
    int servers = 0;     // servers of the job that are not ranks of the set
    const DescriptorTable& table;
    const Readiness& readiness;
    const DecisionLog& log;
    const Plan& plan;
    const CatchUp& catch_up;
  };
  explicit Gate(const Facts& facts);

  // Checks a message of `sender`, a rank of the set. Returns "" for a valid message. Otherwise
  // returns the end of the sentence "it sent ...".
  std::string complaint(int sender, const ReadyMessage& message);
  std::string complaint(int sender, const InternMessage& message);
  std::string complaint(int sender, const Decision& decision);
  std::string complaint(int sender, const VerdictMessage& message);
  std::string complaint(int sender, const PlanMessage& message);
  std::string complaint(int sender, const FreezeMessage& message);
  std::string complaint(int sender, const FrozenMessage& message);
  std::string complaint(int sender, const ResumeMessage& message);
  std::string complaint(int sender, const CaughtUpMessage& message);
  std::string complaint(int sender, const ReplayMessage& message);
  std::string complaint(int sender, const AllJoinedMessage& message);
  std::string complaint(int sender, const PlaceMessage& message);

 private:
  struct Unit {
    const Descriptor* descriptor;
    int64_t iteration;
  };
  // The fields that decisions of the log and of a plan share.
  struct Batch {
    Algorithm algorithm;
    uint64_t segment_bytes;
    const RowTable& rows;
    int64_t most_rows;
    // An alltoall has a row count for each of these ranks, or one for all of them.
    std::size_t receivers;
  };

  bool is_server() const { return world_.rank >= world_.size(); }
  bool is_parent(int sender) const { return sender == parent_; }
  bool is_child(int sender) const { return sender > 0 && tree_parent(sender) == world_.rank; }
  // Whether a sequence is near those that this rank has accepted.
  bool is_near(uint64_t sequence) const;
  bool is_unplanned() const { return facts_.plan.phase() == Plan::Phase::log; }
  // Null if the number was never assigned, or if the descriptor cannot run here.
  const Descriptor* sound(const DescriptorRef& ref);
  std::string complaint_about(int sender, const ReadyRecord& record);
  std::string complaint_about_rows(const ReadyRecord& record, const Descriptor& descriptor) const;
  std::string complaint_about(const Batch& batch);  // checks units_
  bool are_rows_right(const Batch& batch, const Descriptor& descriptor, bool& moves_bytes) const;
  bool has_a_unit_twice() const;

  const Facts facts_;
  const World& world_;
  const int parent_;  // in the control tree: -1 at the root, the root at a server
  // Indexed by number - 1. Descriptors that cannot run are null.
  std::vector<std::unique_ptr<const Descriptor>> known_;
  Descriptor read_;  // the last full descriptor
  // the operations of the decision being checked; a member to reuse its memory
  std::vector<Unit> units_;
  std::map<int, uint32_t> reported_;  // by child: the era of the last plan that it reported on
};

}  // namespace rdmacoll
