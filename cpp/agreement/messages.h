// What goes over the control tree. Encoded with base/wire, decoded with every field checked.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "collectives/algorithms.h"

namespace rdmacoll {

// An agreed description of an operation: a number once the root has given one, before that in full.
struct DescriptorRef {
  uint32_t id = 0;  // 0: `bytes` says it
  std::string bytes;
};

// Upward: "this operation is ready at `origin`", or in the whole subtree of `origin`.
struct ReadyRecord {
  DescriptorRef descriptor;
  int64_t iteration = 0;
  int32_t origin = 0;
  bool subtree = false;
  // What a rank alone knows of its rows (own_rows in cut.h): rank, numbers.
  std::vector<std::pair<int32_t, std::vector<int64_t>>> rows;
  // Of the tensors, for people: what `origin` calls them. No part of what has to agree. Like the
  // descriptor it is said once: "" when that is a number, but for unnamed operations.
  std::string labels = {};
  // Names whose order has to agree: listing.h. "": there are none, or those that `origin` has said
  // for this operation last.
  std::string listing = {};
  Nanoseconds age = 0;  // since the first rank submitted it: said again, it is no younger
  // No operation: `origin` has no data left, and takes part with zeros in what the others sum,
  // until all have joined. `iteration`: the number that its next unnamed operation would have.
  bool joins = false;
};
struct ReadyMessage {
  std::vector<ReadyRecord> records;
  uint32_t era = 0;  // of another one than the receiver's it is void: everybody says it again
};

// Downward: from now on this number means this descriptor.
struct InternMessage {
  uint32_t id = 0;
  std::string bytes;
};

// Downward: these operations, together, now. Everybody runs decisions in the order of `sequence`.
struct DecisionUnit {
  DescriptorRef descriptor;
  int64_t iteration = 0;
};
struct Decision {
  uint64_t sequence = 0;
  Algorithm algorithm = Algorithm::none;
  uint64_t segment_bytes = 0;
  std::vector<DecisionUnit> units;
  // By rank, where ranks give or get different numbers. Of an alltoall one number for all, or those
  // for the receiver of this message and for all below it in the tree.
  std::vector<std::vector<int64_t>> rows;
  int64_t most_rows = 0;  // alltoall: that anybody gives to anybody
};

// Downward: the decisions from `start` on are these, over and over, until somebody says otherwise:
// nobody asks, nobody answers. The eras of the log and of plans take turns.
struct PlannedUnit {
  uint32_t descriptor = 0;
  bool numbered = false;  // unnamed: its iteration is the next number
  int64_t iteration = 0;
};
struct PlannedDecision {
  Algorithm algorithm = Algorithm::none;
  uint64_t segment_bytes = 0;
  std::vector<PlannedUnit> units;
  std::vector<std::vector<int64_t>> rows = {};  // as all ranks have said them
  int64_t most_rows = 0;                        // as in Decision
};
struct PlanMessage {
  uint32_t era = 0;
  uint64_t start = 0;
  int64_t first_number = 0;  // of the numbered units
  std::vector<PlannedDecision> decisions;
};

// To everybody along the tree: what this rank has to do is not in the plan, or does not come its
// way.
struct FreezeMessage {
  uint32_t era = 0;
};

// Upward: nobody in my subtree starts anything more; so far they had taken at least and at most so
// many decisions.
struct FrozenMessage {
  uint32_t era = 0;
  uint64_t least = 0;
  uint64_t furthest = 0;
};

// Downward: back to the log. What somebody has started, the plan's decisions up to `furthest`,
// everybody runs.
struct ResumeMessage {
  uint32_t era = 0;
  uint64_t least = 0;
  uint64_t furthest = 0;
};

// Downward, after a plan: every rank has what this decision needs, or has heard the verdict of what
// it has not.
struct CaughtUpMessage {
  uint64_t sequence = 0;
};

// Downward, after a plan: every rank has what this decision needs, but some with other numbers of
// rows than the plan has. It is run with those of the plan, and for nothing: then everybody says
// again what it has, and the log decides.
struct AnewMessage {
  uint64_t sequence = 0;
};

// From the first member to all others: where the results of this decision lie, in its pool, or
// kNoPlace: each has its own.
struct PlaceMessage {
  static constexpr uint64_t kNoPlace = UINT64_MAX;
  uint64_t sequence = 0;
  uint64_t offset = kNoPlace;
};

// Downward: all ranks have joined, and go on as before.
struct AllJoinedMessage {
  int32_t last = -1;        // the rank that was the last
  int64_t next_number = 0;  // of unnamed operations from here on
};

// Downward: this operation ends with an error on these ranks. They have submitted it and cannot
// submit it again before they hear this, so it meets the operation that it is about.
struct VerdictMessage {
  std::string name;
  int64_t iteration = 0;
  std::vector<int32_t> ranks;
  Status status;
};

// To everybody: a rank is gone. The first sentence wins.
struct FailureMessage {
  int32_t rank = -1;
  Status status;
};

// To everybody along the tree: a rank goes, by its own will. `cause` is "" for a clean end.
struct LeavingMessage {
  int32_t rank = -1;
  bool unfinished = false;  // it had operations in flight
  // By set: the decisions that it has taken part in. A set that it is not in has none.
  std::map<uint32_t, uint64_t> started;
  std::string cause;
};

// To each connected peer: my connection is about to close, and nothing is wrong.
struct GoodbyeMessage {
  LeavingMessage leaving;  // may come before the one along the tree, and before decisions
};

// The answer to it: I have all that I need of you.
struct FarewellMessage {};

// A message that is too long for a transport comes in several of these.
struct FragmentMessage {
  bool is_last = false;
  std::string bytes;
};
inline constexpr std::size_t kMessageBytesMax = 64 << 20;

using Message = std::variant<ReadyMessage, InternMessage, Decision, VerdictMessage, FailureMessage,
                             LeavingMessage, GoodbyeMessage, PlanMessage, FreezeMessage,
                             FrozenMessage, ResumeMessage, CaughtUpMessage, FragmentMessage,
                             FarewellMessage, AllJoinedMessage, AnewMessage, PlaceMessage>;

// Every control message begins with the epoch of its world, and the set that it is for: its ranks
// are the set's. What is about the world is for set 0.
std::vector<std::byte> encode(uint32_t epoch, const Message& message, uint32_t set = 0);
// The same, in as many messages as a transport takes it. The parts are for set 0: which set the
// whole is for, it says itself.
std::vector<std::vector<std::byte>> encode_in_parts(uint32_t epoch, const Message& message,
                                                    uint32_t set = 0);
uint32_t epoch_of(std::span<const std::byte> bytes);
uint32_t addressed_set(std::span<const std::byte> bytes);
// False: not a message of this epoch, or damaged. `ranks`: how many the set has; `servers`: how
// many others the job has, which may fail and leave.
bool decode(uint32_t epoch, int ranks, std::span<const std::byte> bytes, Message& message,
            int servers = 0);

}  // namespace rdmacoll
