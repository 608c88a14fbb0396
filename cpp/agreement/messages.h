// The messages of the control tree. They are encoded with base/wire. Decoding checks every field.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "base/clock.h"
#include "base/rank.h"
#include "base/status.h"
#include "collectives/algorithms.h"

namespace rdmacoll {

// Refers to a descriptor: by number once the root has assigned one, in full before that.
struct DescriptorRef {
  uint32_t id = 0;  // 0: `bytes` has the descriptor
  std::string bytes;
};

// Upward: "this operation is ready at `origin`", or in the whole subtree of `origin`.
struct ReadyRecord {
  DescriptorRef descriptor;
  int64_t iteration = 0;
  SetRank origin;
  bool subtree = false;
  // The row counts that only a rank itself knows (own_rows() in cut.h), by rank.
  std::vector<std::pair<SetRank, std::vector<int64_t>>> rows;
  // The tensors' labels at `origin`, for error messages. Ranks need not agree on them. They are
  // sent once, like the descriptor: "" if the descriptor is a number and the operation has a name.
  std::string labels = {};
  // Names whose order must agree (listing.h). "": none, or the same names that `origin` sent for
  // this operation before.
  std::string listing = {};
  Nanoseconds age = 0;  // since the first rank submitted it; repeated records keep it
  // A join, and no operation: `origin` has no data left. It takes part with zeros in sums until all
  // ranks have joined. `iteration`: the number of its next unnamed operation.
  bool joins = false;
};
// The time that a trial took on the slowest one of so many ranks.
struct TrialTime {
  uint64_t sequence = 0;
  Nanoseconds time = 0;
  uint32_t ranks = 0;
};
struct ReadyMessage {
  std::vector<ReadyRecord> records;
  uint32_t era = 0;  // readiness of another era is void; ranks send it again
  std::vector<TrialTime> times = {};
};

// Downward: assigns a number to a descriptor.
struct InternMessage {
  uint32_t id = 0;
  std::string bytes;
};

// Downward: run these operations together, now. All ranks run decisions in the order of `sequence`.
struct DecisionUnit {
  DescriptorRef descriptor;
  int64_t iteration = 0;
};
struct Decision {
  uint64_t sequence = 0;
  Movement movement;
  std::vector<DecisionUnit> units = {};
  // Row counts by rank, if they differ between ranks. An alltoall has a list for each sender: one
  // number for all receivers, or one for each rank in the subtree of the message's receiver.
  std::vector<std::vector<int64_t>> rows = {};
  int64_t most_rows = 0;  // alltoall: the maximum over all pairs of ranks
  bool is_timed = false;  // a trial: all ranks tell how long it takes
};

// Downward: the decisions from `start` on are these, repeated until a rank leaves the plan. Ranks
// exchange no messages meanwhile. The eras of the log and of plans alternate.
struct PlannedUnit {
  uint32_t descriptor = 0;
  bool numbered = false;  // unnamed: takes the next number as its iteration
  int64_t iteration = 0;
};
struct PlannedDecision {
  Movement movement;
  std::vector<PlannedUnit> units = {};
  std::vector<std::vector<int64_t>> rows = {};  // the row counts of all ranks
  int64_t most_rows = 0;                        // as in Decision
};
struct PlanMessage {
  uint32_t era = 0;
  uint64_t start = 0;
  int64_t first_number = 0;  // the number of the first numbered unit
  std::vector<PlannedDecision> decisions;
};

// Along the tree, to all ranks: this rank leaves the plan. Either its operation is not in the plan,
// or the planned operation does not come.
struct FreezeMessage {
  uint32_t era = 0;
};

// Upward: all ranks of this subtree have stopped taking decisions. The message has the least and
// the largest number of decisions that one of them has taken. From `kept` on, the operations that
// these ranks have started can run again.
struct FrozenMessage {
  uint32_t era = 0;
  uint64_t least = 0;
  uint64_t furthest = 0;
  uint64_t kept = 0;
};

// Downward: return to the log. All ranks run the plan's decisions up to `furthest`, since some rank
// has started them. Those from `kept` on run for nothing, and the log decides their operations.
struct ResumeMessage {
  uint32_t era = 0;
  uint64_t least = 0;
  uint64_t furthest = 0;
  uint64_t kept = 0;
};

// Downward, after a plan: every rank has the operations of this decision, or has heard the error of
// the missing ones.
struct CaughtUpMessage {
  uint64_t sequence = 0;
};

// Downward, after a plan: some ranks have other row counts than the plan for this decision. The
// decision runs with the planned rows, and its result is discarded. Then all ranks send their
// readiness again, and the log decides.
struct ReplayMessage {
  uint64_t sequence = 0;
};

// From the first member to all others: where a decision's results lie in the first member's pool.
// kNotShared: each rank uses its own memory.
struct ResultAddressMessage {
  static constexpr uint64_t kNotShared = UINT64_MAX;
  uint64_t sequence = 0;
  uint64_t offset = kNotShared;
};

// Downward: all ranks have joined. Normal operation resumes.
struct AllJoinedMessage {
  SetRank last;             // the last rank that joined
  int64_t next_number = 0;  // the number of the next unnamed operation
};

// Downward: this operation ends with an error on these ranks. They have submitted it. They cannot
// submit it again before this message, so the verdict cannot meet a later operation.
struct VerdictMessage {
  std::string name;
  int64_t iteration = 0;
  std::vector<SetRank> ranks;
  Status status;
};

// To all ranks: a rank has failed. The first message about it wins.
struct FailureMessage {
  JobRank rank;
  Status status;
};

// Along the tree, to all ranks: a rank leaves on its own. `cause` is "" for a clean end.
struct LeavingMessage {
  JobRank rank;
  bool unfinished = false;  // operations were in flight
  // The number of decisions in which the rank has taken part, by set. Only its sets are there.
  std::map<uint32_t, uint64_t> started;
  std::string cause;
};

// To each connected peer: this rank is about to close the connection, without an error.
struct GoodbyeMessage {
  LeavingMessage leaving;  // may arrive before the one along the tree, and before decisions
};

// The answer to a GoodbyeMessage: this rank needs nothing more from the peer.
struct FarewellMessage {};

// A part of a message that is too long for a transport.
struct FragmentMessage {
  bool is_last = false;
  std::string bytes;
};
inline constexpr std::size_t kMessageBytesMax = 64 << 20;

using Message =
    std::variant<ReadyMessage, InternMessage, Decision, VerdictMessage, FailureMessage,
                 LeavingMessage, GoodbyeMessage, PlanMessage, FreezeMessage, FrozenMessage,
                 ResumeMessage, CaughtUpMessage, FragmentMessage, FarewellMessage, AllJoinedMessage,
                 ReplayMessage, ResultAddressMessage>;

// Encodes a message. Each message begins with the epoch of its world and the process set it is for.
// Messages about the world are for set 0.
std::vector<std::byte> encode(uint32_t epoch, const Message& message, uint32_t set = 0);
// Encodes a message in as many parts as the transport requires. The parts are for set 0. The whole
// message names its own set.
std::vector<std::vector<std::byte>> encode_in_parts(uint32_t epoch, const Message& message,
                                                    uint32_t set = 0);
uint32_t epoch_of(std::span<const std::byte> bytes);
uint32_t addressed_set(std::span<const std::byte> bytes);
// Decodes a message. Returns false if it is damaged, or belongs to another epoch. `ranks`: the size
// of the set. `servers`: further processes of the job, which may fail and leave.
bool decode(uint32_t epoch, int ranks, std::span<const std::byte> bytes, Message& message,
            int servers = 0);

}  // namespace rdmacoll
