// A program is a schedule that is ready to run. It is lowered to the visible memory, and everything
// that the executor needs for each segment is counted in advance. It is built once for each kind of
// batch.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <tuple>
#include <vector>

#include "base/set_world.h"
#include "collectives/algorithms.h"
#include "collectives/lower.h"
#include "collectives/schedule.h"

namespace rdmacoll {

struct Program {
  // Peers in a lowered schedule are ranks of the set. Peers in the program, and in its schedule,
  // are ranks of the job.
  // `calls_roll`: the schedule has a roll call, so the operation ends after all receives.
  Program(Schedule lowered, const SetMembers& members, bool calls_roll = false);
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  Schedule schedule;
  struct StepTraits {  // the properties of a step that the executor needs
    bool computes = false;
    // The operation ends when these steps are done. They use the caller's memory until then, or
    // hear from a rank in a roll call.
    bool touches_caller = false;
    bool sends = false;
    bool is_peer_visible = false;  // a peer reads what this step writes, and answers elsewhere
    bool writes_lent = false;      // the step writes to a lent slot, of this rank or of a peer
    uint16_t per_segment = 0;      // number of transfers with its peer, in its direction
    std::span<const uint16_t> successors;  // steps that wait for this one
  };
  std::vector<StepTraits> turns;  // by step
  std::vector<uint16_t> afters;   // by step: the number of steps that it waits for
  std::vector<uint16_t> first;    // steps that wait for no other
  std::vector<uint16_t> readers;  // by await step: the number of steps that read its view
  bool has_views = false;
  bool has_peer_visible_writes = false;  // a step with is_peer_visible writes work memory
  bool lends = false;                    // a step lends work memory to a peer
  uint32_t caller_steps = 0;             // number of steps with `touches_caller`
  std::vector<bool> ends_there;          // by step: writes output that no other step reads
  struct Traffic {
    JobRank peer;
    uint16_t out = 0, in = 0;  // transfers of a segment, which number the sequences
  };
  std::vector<Traffic> traffic;  // one entry for each peer
  uint32_t scratch_parts = 0;    // the total of all slots

  std::size_t index_of(const Step& step) const {
    return static_cast<std::size_t>(&step - schedule.steps.data());
  }
  bool has_traffic_with(JobRank peer) const {
    return std::ranges::any_of(traffic, [peer](const Traffic& one) { return one.peer == peer; });
  }

 private:
  void link_steps();
  void count_traffic();

  std::vector<uint16_t> successors_;
};

// The properties of a schedule that are needed before it is lowered.
struct Outline {
  std::vector<JobRank> peers;  // without duplicates
  int parts = 1;               // number of parts in a segment
  int parts_at_once = 1;       // the maximum number of parts in one step

  Outline(const Schedule& schedule, const SetMembers& members);
};

class Programs {
 public:
  explicit Programs(const SetMembers& members) : members_(members) {}
  // The program of these parameters, built on first use. `calls_roll`: adds a roll call
  // (roll_call.h).
  const Program& prepared(Algorithm algorithm, const Shape& shape, const Placement& placement,
                          bool calls_roll);
  std::size_t made() const { return programs_.size(); }

 private:
  // Root, prescaled, wide sums, input, output, views, NICs, roll call, output shared, direct
  // access.
  using Key = std::tuple<Algorithm, int, bool, bool, CallerMemory, CallerMemory, bool, bool, bool,
                         bool, DirectAccess>;
  const SetMembers& members_;
  std::map<Key, std::unique_ptr<Program>> programs_;
};

}  // namespace rdmacoll
