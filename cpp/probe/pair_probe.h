// Measures the path between two ranks: one leads, the other follows. It uses the Transport
// interface alone, so that any transport can be measured, also the simulator's.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "probe/task_runner.h"

namespace rdmacoll::probe {

struct Plan {
  std::vector<uint64_t> sizes;  // bytes of a transfer
  bool latency = true;
  bool exchange = true;
  bool bandwidth = true;
  int repeats = 3;                              // bursts of each cell
  Nanoseconds burst = 20 * kMillisecond;        // approximate time of one burst
  Nanoseconds progress_timeout = 10 * kSecond;  // if nothing moves for so long, the test fails
  Nanoseconds limit = 60 * kSecond;             // for the whole test
};

struct Times {
  double median_us = 0, min_us = 0, max_us = 0;
  std::size_t rounds = 0;  // the number of timed rounds
};

struct Speeds {        // GB (10^9 bytes) per second, the median of the bursts
  double forward = 0;  // from the leader to the follower
  double back = 0;
  double both = 0;  // both at once, in sum
};

struct Row {
  uint64_t bytes = 0;
  Times latency;   // half of the time of a ping-pong, over all rounds
  Times exchange;  // the time in which both sides send at once, over the means of the bursts
  Speeds speeds;
};

// The probe calls it when nothing has moved since `since`. The function sleeps, yields or steps a
// simulator. It returns by `until`.
using Idle = std::function<void(Nanoseconds since, Nanoseconds until)>;

struct Setting {
  const Clock& clock;
  Idle idle;
  Plan plan;
};

// Both return within the plan's limit. Once for each size, before anything is timed, they compare
// the bytes that arrive with those that were sent.
Status lead(TaskRunner& runner, const Setting& setting, std::vector<Row>& rows);
Status follow(TaskRunner& runner, const Setting& setting);

// Turns the runner until `done`. Fails if the runner fails, if nothing moves for the plan's
// progress_timeout, or when `deadline` has come. `what` is for the sentence: "the exchange of 64
// KiB".
Status turn_until(TaskRunner& runner, const Setting& setting, Nanoseconds deadline,
                  const std::string& what, const std::function<bool()>& done);

}  // namespace rdmacoll::probe
