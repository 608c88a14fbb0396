// Measures the path between two ranks: one leads, the other follows. Over the Transport interface
// alone, so that any transport can be measured, the simulator's too.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "probe/pair_player.h"

namespace rdmacoll::probe {

struct Plan {
  std::vector<uint64_t> sizes;  // bytes of a transfer
  bool latency = true;
  bool exchange = true;
  bool bandwidth = true;
  int repeats = 3;                        // bursts of each cell
  Nanoseconds burst = 20 * kMillisecond;  // about how long one takes
  Nanoseconds patience = 10 * kSecond;    // nothing moves for so long: an error
  Nanoseconds limit = 60 * kSecond;       // of all of it
};

struct Times {
  double median_us = 0, min_us = 0, max_us = 0;
  std::size_t rounds = 0;  // so many were timed
};

struct Speeds {        // GB (10^9 bytes) per second, the median of the bursts
  double forward = 0;  // from the leader to the follower
  double back = 0;
  double both = 0;  // both at once, in sum
};

struct Row {
  uint64_t bytes = 0;
  Times latency;   // one way: half of a ping-pong; of all rounds
  Times exchange;  // both send at once; of the bursts' means
  Speeds speeds;
};

// What to do while nothing moves, which has been so `since`: until a time at most, sleep, give way,
// or step a simulator.
using Idle = std::function<void(Nanoseconds since, Nanoseconds until)>;

struct Setting {
  const Clock& clock;
  Idle idle;
  Plan plan;
};

// Both return within the plan's limit. What arrives is compared with what was sent, once per size,
// before anything is timed.
Status lead(Player& player, const Setting& setting, std::vector<Row>& rows);
Status follow(Player& player, const Setting& setting);

// Turns the player until `done`; a Status when it fails, when nothing moves for the plan's patience
// or when `deadline` has come. `what` is for the sentence: "the exchange of 64 KiB".
Status turn_until(Player& player, const Setting& setting, Nanoseconds deadline,
                  const std::string& what, const std::function<bool()>& done);

}  // namespace rdmacoll::probe
