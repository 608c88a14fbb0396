// A schedule made ready to run: lowered to where memory lies, with everything counted that the
// executor would otherwise count per segment. Prepared once per kind of batch, replayed ever after.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
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
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  Schedule schedule;
  struct Turn {  // what the executor asks of a step, each time
    bool computes = false;
    bool touches_caller = false;  // the caller's memory is in use until it is done
    bool sends = false;
    bool is_shown = false;                 // a peer reads what it writes
    uint16_t per_segment = 0;              // how many transfers with its peer go its way
    std::span<const uint16_t> successors;  // who waits for it
  };
  std::vector<Turn> turns;        // by step
  std::vector<uint16_t> afters;   // by step: for how many others it waits
  std::vector<uint16_t> first;    // steps that wait for none
  std::vector<uint16_t> readers;  // by await step: how many steps read its view
  bool has_views = false;
  bool shows = false;            // some step's result to a peer, in work memory
  uint32_t caller_steps = 0;     // how many touch the caller's memory
  std::vector<bool> ends_there;  // by step: it writes output that no other step looks at
  struct Traffic {
    int peer = -1;
    uint16_t out = 0, in = 0;  // transfers per segment: they number the sequences
  };
  std::vector<Traffic> traffic;  // one for each peer
  uint32_t scratch_parts = 0;    // of all slots together

  std::size_t index_of(const Step& step) const {
    return static_cast<std::size_t>(&step - schedule.steps.data());
  }
  bool has_traffic_with(int peer) const {
    return std::ranges::any_of(traffic, [peer](const Traffic& one) { return one.peer == peer; });
  }

 private:
  void link_steps();
  void count_traffic();

  std::vector<uint16_t> successors_;
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
  // Root, prescaled, wide, visible in and out, views, devices, roll call, output shared.
  using Key = std::tuple<Algorithm, int, bool, bool, bool, bool, bool, bool, bool, bool>;
  const std::vector<int>& ranks_;
  std::map<Key, std::unique_ptr<Program>> programs_;
};

}  // namespace rdmacoll
