// A schedule made ready to run: lowered to where memory lies, with everything counted that the
// executor would otherwise count per segment. Prepared once per kind of batch, replayed ever after.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <tuple>
#include <vector>

#include "collectives/algorithms.h"
#include "collectives/lower.h"
#include "collectives/schedule.h"

namespace rdmacoll {

struct Program {
  // `ranks`: what the peers of the schedule, which counts the members of a set, are called in the
  // job. That is how the program calls them.
  Program(Schedule lowered, const std::vector<int>& ranks);

  Schedule schedule;
  std::vector<std::vector<uint16_t>> successors;  // by step: who waits for it
  std::vector<uint16_t> readers;                  // by await step: how many steps read its view
  bool has_views = false;
  std::vector<bool> touches_caller;  // by step: the caller's memory is in use until it is done
  uint32_t caller_steps = 0;         // how many of those
  std::vector<bool> ends_there;      // by step: it writes output that no other step looks at
  struct Traffic {
    int peer = -1;
    uint16_t out = 0, in = 0;  // transfers per segment: they number the sequences
  };
  std::vector<Traffic> traffic;       // one for each peer
  std::vector<uint16_t> per_segment;  // by step: how many transfers with its peer go its way
  uint16_t scratch_parts = 0;         // of all slots together

  std::size_t index_of(const Step& step) const {
    return static_cast<std::size_t>(&step - schedule.steps.data());
  }
  bool has_traffic_with(int peer) const {
    return std::ranges::any_of(traffic, [peer](const Traffic& one) { return one.peer == peer; });
  }

 private:
  void count_traffic();
};

// What has to be known of a schedule before it is lowered.
struct Outline {
  std::vector<int> peers;  // ranks of the job, each once
  int parts = 1;           // that a segment is cut into
  int parts_at_once = 1;   // the most in one step

  Outline(const Schedule& schedule, const std::vector<int>& ranks);
};

class Programs {
 public:
  explicit Programs(const std::vector<int>& ranks) : ranks_(ranks) {}
  // `calls_roll`: beside what the algorithm does, as in roll_call.h.
  const Program& prepared(Algorithm algorithm, const Shape& shape, const Placement& placement,
                          bool calls_roll);
  std::size_t made() const { return programs_.size(); }

 private:
  // Root, prescaled, visible in and out, views, devices, roll call, output shared.
  using Key = std::tuple<Algorithm, int, bool, bool, bool, bool, bool, bool, bool>;
  const std::vector<int>& ranks_;
  std::map<Key, std::unique_ptr<Program>> programs_;
};

}  // namespace rdmacoll
