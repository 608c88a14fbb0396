// The gate of the agreement: each message of another rank is held against what this rank knows,
// before the message has any effect. A message that does not fit is its sender's fault. An
// assertion that fails behind the gate is a bug of this process.
//
// Pure: it knows the set and its state of agreement, and no transport.
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
#include "agreement/plan_mode.h"
#include "agreement/readiness.h"
#include "base/world.h"
#include "operation/operation.h"

namespace rdmacoll {

// The largest operation of one rank, in bytes. Sums over the ranks of any world stay in 64 bits.
inline constexpr uint64_t kOperationBytesMax = uint64_t{1} << 46;

class Gate {
 public:
  struct Facts {
    const World& world;  // the set, with the rank of this process in it
    int servers = 0;     // beside the ranks of the set
    const DescriptorTable& table;
    const Readiness& readiness;
    const DecisionLog& log;
    const PlanMode& plan;
    const CatchUp& catch_up;
  };
  explicit Gate(const Facts& facts);

  // The end of the sentence "it sent ..." about a message that does not fit, or "". `sender` is a
  // rank of the set.
  std::string complaint(int sender, const ReadyMessage& message);
  std::string complaint(int sender, const InternMessage& message);
  std::string complaint(int sender, const Decision& decision);
  std::string complaint(int sender, const VerdictMessage& message);
  std::string complaint(int sender, const PlanMessage& message);
  std::string complaint(int sender, const FreezeMessage& message);
  std::string complaint(int sender, const FrozenMessage& message);
  std::string complaint(int sender, const ResumeMessage& message);
  std::string complaint(int sender, const CaughtUpMessage& message);
  std::string complaint(int sender, const AnewMessage& message);
  std::string complaint(int sender, const AllJoinedMessage& message);
  std::string complaint(int sender, const PlaceMessage& message);

 private:
  struct Unit {
    const Descriptor* descriptor;
    int64_t iteration;
  };
  // What a decision of the log and one of a plan have in common.
  struct Batch {
    Algorithm algorithm;
    uint64_t segment_bytes;
    const RowTable& rows;
    int64_t most_rows;
    // An alltoall has a number for each of these ranks, or one for all of them.
    std::size_t receivers;
  };

  bool is_server() const { return world_.rank >= world_.size(); }
  bool is_parent(int sender) const { return sender == parent_; }
  bool is_child(int sender) const { return sender > 0 && tree_parent(sender) == world_.rank; }
  // Whether a sequence is near those that this rank has accepted.
  bool is_near(uint64_t sequence) const;
  bool is_unplanned() const { return facts_.plan.phase() == PlanMode::Phase::log; }
  // Null: nobody has given the number, or the descriptor is none that can run here.
  const Descriptor* sound(const DescriptorRef& ref);
  std::string complaint_about(int sender, const ReadyRecord& record);
  std::string complaint_about_rows(const ReadyRecord& record, const Descriptor& descriptor) const;
  std::string complaint_about(const Batch& batch);  // of units_
  bool are_rows_right(const Batch& batch, const Descriptor& descriptor, bool& moves_bytes) const;
  bool has_a_unit_twice() const;

  const Facts facts_;
  const World& world_;
  const int parent_;  // the root's is -1, a server's the root
  // By number. Descriptors that cannot run are null.
  std::vector<std::unique_ptr<const Descriptor>> known_;
  Descriptor read_;                   // of a descriptor in full
  std::vector<Unit> units_;           // of the decision in hand; kept for its capacity
  std::map<int, uint32_t> reported_;  // by child: the era of the last plan that it has reported on
};

}  // namespace rdmacoll
