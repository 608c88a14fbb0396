// The messages of two ranks that measure their path. The leader names tasks, both run them, and
// the follower says when a task is done.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "memory/piece.h"

namespace rdmacoll::probe {

enum class Pattern : uint8_t {
  ping_pong,  // the leader sends, the follower answers
  exchange,   // both send at once, as in recursive doubling: the way of a grant counts
  stream,     // one after the other, several in flight
};

inline constexpr uint32_t kWindowMax = 64;

struct Task {
  Pattern pattern = Pattern::ping_pong;
  bool forward = true;  // stream: from the leader to the follower
  bool back = true;     // stream: from the follower to the leader
  bool checks = false;  // compare the bytes that arrive with those that were sent
  uint64_t bytes = 0;   // bytes of one transfer
  uint32_t rounds = 1;
  uint32_t window = 1;  // transfers in flight

  bool sends(bool leads) const { return leads ? forward : back; }
  bool receives(bool leads) const { return leads ? back : forward; }
};

struct Message {
  enum class Kind : uint8_t { task, done, end };
  Kind kind = Kind::end;
  Task task;                 // task
  uint64_t wrong_bytes = 0;  // done: the result of a task that checks
};

std::vector<std::byte> encode(const Message& message);
// False: the bytes are no message of this version.
bool decode(std::span<const std::byte> bytes, Message& message);

// paint() writes bytes that depend on the sender and the slot of the window. count_wrong() counts
// those that differ.
void paint(Piece piece, int sender, uint32_t slot);
uint64_t count_wrong(Piece piece, int sender, uint32_t slot);

}  // namespace rdmacoll::probe
