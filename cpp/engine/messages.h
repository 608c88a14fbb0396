// What goes over the control tree. Encoded with base/wire, decoded with every field checked.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

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
  std::vector<std::pair<int32_t, int64_t>> firsts;  // allgather: rank, its first dimension
  // Of the tensors, for people: what `origin` calls them. No part of what has to agree. Like the
  // descriptor it is said once: "" when that is a number, but for unnamed operations.
  std::string labels = {};
};
struct ReadyMessage {
  std::vector<ReadyRecord> records;
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
  std::vector<int64_t> firsts;  // allgather: by rank
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
  std::string cause;
};

// To each connected peer: my connection is about to close, and nothing is wrong.
struct GoodbyeMessage {};

using Message = std::variant<ReadyMessage, InternMessage, Decision, VerdictMessage, FailureMessage,
                             LeavingMessage, GoodbyeMessage>;

// Every control message begins with the epoch of its world.
std::vector<std::byte> encode(uint32_t epoch, const Message& message);
// False: not a message of this epoch, or damaged.
bool decode(uint32_t epoch, int ranks, std::span<const std::byte> bytes, Message& message);

}  // namespace rdmacoll
