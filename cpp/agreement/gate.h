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
#include "base/set_world.h"
#include "operation/operation.h"

namespace rdmacoll {

class Gate {
 public:
  struct Facts {
    const SetWorld& world;
    int servers = 0;  // servers of the job that are not ranks of the set
    const DescriptorTable& table;
    const Readiness& readiness;
    const DecisionLog& log;
    const Plan& plan;
    const CatchUp& catch_up;
  };
  explicit Gate(const Facts& facts);

  // Checks a message of `sender`. Returns "" for a valid message. Otherwise
  // returns the end of the sentence "it sent ...".
  std::string complaint(SetRank sender, const ReadyMessage& message);
  std::string complaint(SetRank sender, const InternMessage& message);
  std::string complaint(SetRank sender, const Decision& decision);
  std::string complaint(SetRank sender, const VerdictMessage& message);
  std::string complaint(SetRank sender, const PlanMessage& message);
  std::string complaint(SetRank sender, const FreezeMessage& message);
  std::string complaint(SetRank sender, const FrozenMessage& message);
  std::string complaint(SetRank sender, const ResumeMessage& message);
  std::string complaint(SetRank sender, const CaughtUpMessage& message);
  std::string complaint(SetRank sender, const ReplayMessage& message);
  std::string complaint(SetRank sender, const AllJoinedMessage& message);
  std::string complaint(SetRank sender, const ResultAddressMessage& message);

 private:
  struct Unit {
    const Descriptor* descriptor;
    int64_t iteration;
  };
  // The fields that decisions of the log and of a plan share.
  struct Batch {
    const Movement& movement;
    const RowTable& rows;
    int64_t most_rows;
    // An alltoall has a row count for each of these ranks, or one for all of them.
    std::size_t receivers;
  };

  bool is_server() const { return world_.is_server(); }
  bool is_parent(SetRank sender) const { return sender == parent_; }
  bool is_child(SetRank sender) const {
    return sender > kTreeRoot && tree_parent(sender) == world_.rank();
  }
  // Whether a sequence is near those that this rank has accepted.
  bool is_near(uint64_t sequence) const;
  bool is_unplanned() const { return facts_.plan.phase() == Plan::Phase::log; }
  // Null if the number was never assigned, or if the descriptor cannot run here.
  const Descriptor* sound(const DescriptorRef& ref);
  std::string complaint_about(SetRank sender, const ReadyRecord& record);
  std::string complaint_about_rows(const ReadyRecord& record, const Descriptor& descriptor) const;
  std::string complaint_about(const Batch& batch);  // checks units_
  bool are_rows_right(const Batch& batch, const Descriptor& descriptor, bool& moves_bytes) const;
  bool has_a_unit_twice() const;

  const Facts facts_;
  const SetWorld& world_;
  const SetRank parent_;  // in the control tree: none at the root, the root at a server
  // Indexed by number - 1. Descriptors that cannot run are null.
  std::vector<std::unique_ptr<const Descriptor>> known_;
  Descriptor read_;  // the last full descriptor
  // the operations of the decision being checked; a member to reuse its memory
  std::vector<Unit> units_;
  std::map<SetRank, uint32_t> reported_;  // by child: the era of the last plan that it reported on
};

}  // namespace rdmacoll
