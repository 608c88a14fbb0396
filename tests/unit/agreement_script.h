// Random programs for ranks that only agree: what each rank submits, and where one deviates.
#pragma once

#include <algorithm>
#include <compare>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "base/text.h"
#include "operation/operation.h"

namespace rdmacoll {

// The place of an operation in the program. Equal on all ranks.
struct Place {
  int phase = 0, step = 0, index = 0;
  auto operator<=>(const Place&) const = default;
};

struct AgreementScript {
  enum class Deviation { none, shape, refusal, late, loss, leave };
  // In each step of a phase, all ranks submit the same operations.
  struct Phase {
    std::vector<Request> operations;
    std::vector<int> steps;  // by rank; unequal only if the phase ends with a join
    bool joins = false;
    bool is_reordered = false;  // each rank submits in an order of its own

    int sums() const {
      return static_cast<int>(
          std::count_if(operations.begin(), operations.end(),
                        [](const Request& request) { return request.kind == Kind::allreduce; }));
    }
  };

  uint64_t seed = 0;
  int ranks = 1, servers = 0;
  uint64_t plan_repeats = 0;
  std::size_t window = 1;       // operations of one rank in flight
  bool waits_for_step = false;  // ranks end a step before they begin the next one
  bool one_node = true;
  bool rows_change = false;
  bool tries_ways = false;   // sums take part in Trials
  bool looks_again = false;  // the root ends plans, as Drift says
  int slow = -1;             // a rank whose messages take longer
  int narrow = -1;           // a rank with a window of 1 in reordered phases
  bool in_place = false;     // sums write over their inputs
  std::vector<Phase> phases;
  Deviation deviation = Deviation::none;
  int deviating = 0;  // the rank
  Place at;           // its operation, for the first deviations
  int ends_at = 0;    // the number of events before the loss or the end, for the last ones

  bool ends_early() const { return deviation == Deviation::loss || deviation == Deviation::leave; }
  std::string text() const {
    return cat("seed ", seed, ": ", ranks, " ranks, ", servers, " servers, plans after ",
               plan_repeats, ", ", phases.size(), " phases, deviation ",
               static_cast<int>(deviation), " of rank ", deviating);
  }
};

class ScriptDraw {
 public:
  explicit ScriptDraw(uint64_t seed) : random_(seed) { script_.seed = seed; }

  AgreementScript draw() {
    script_.ranks = one_in(12) ? 18 + below(3) : 1 + below(5);  // from 18 on the tree is deeper
    script_.servers = one_in(6) ? 1 + below(2) : 0;
    script_.plan_repeats = one_in(4) ? 0 : 2 + static_cast<uint64_t>(below(2));
    script_.window = static_cast<std::size_t>(1 + below(8));
    script_.waits_for_step = one_in(3);
    script_.one_node = !one_in(3);
    script_.rows_change = one_in(3);
    script_.slow = one_in(2) ? below(script_.ranks) : -1;
    const int phases = 1 + below(3);
    for (int phase = 0; phase < phases; ++phase) draw_phase();
    draw_deviation();
    script_.tries_ways = one_in(4);
    script_.looks_again = script_.tries_ways && one_in(2);
    // Trials of all sizes end, and a plan begins after them.
    if (script_.looks_again) lengthen(60);
    // The other ranks submit all operations of a step, so no order of one rank can block it.
    script_.narrow = one_in(2) ? below(script_.ranks) : -1;
    script_.in_place = script_.seed % 2 == 0;
    if (script_.in_place) work_in_place();
    return script_;
  }

 private:
  int below(int limit) { return static_cast<int>(random_() % static_cast<uint64_t>(limit)); }
  bool one_in(int times) { return below(times) == 0; }

  void draw_phase() {
    AgreementScript::Phase phase;
    const auto number = script_.phases.size();
    const int operations = 1 + below(4);
    for (int i = 0; i < operations; ++i) {
      Request request;
      constexpr Kind kKinds[] = {Kind::allreduce, Kind::allreduce, Kind::allreduce, Kind::allgather,
                                 Kind::barrier,   Kind::broadcast, Kind::alltoall};
      request.kind = script_.servers > 0 && one_in(2) ? Kind::allreduce : kKinds[below(7)];
      if (request.kind == Kind::allreduce && one_in(6)) request.op = ReduceOp::min;
      if (!one_in(4)) request.name = cat("t", number % 2, i);  // phases share names
      const int64_t rows = request.kind == Kind::alltoall ? script_.ranks : 1 + below(4);
      if (request.kind != Kind::barrier) request.tensors = {{nullptr, nullptr, {rows, 2}, ""}};
      if (!request.name.empty() && one_in(2)) request.listing = "1 2 3 4\nweights";
      phase.operations.push_back(std::move(request));
    }
    const int steps = 1 + below(12);
    phase.steps.assign(static_cast<std::size_t>(script_.ranks), steps);
    phase.joins = one_in(4);
    if (phase.joins) {
      for (int& own : phase.steps) own = std::max(0, own - (one_in(2) ? below(4) : 0));
    }
    // Ranks wait for each other for ever if a rank cannot submit all operations of a step.
    const bool may_be_reordered =
        script_.window >= phase.operations.size() &&
        std::all_of(phase.operations.begin(), phase.operations.end(),
                    [](const Request& request) { return !request.name.empty(); });
    phase.is_reordered = may_be_reordered && one_in(4);
    script_.phases.push_back(std::move(phase));
  }

  // Ranks catch up with such sums. They wait for ever if a rank waits for one sum of a batch before
  // it submits another, or for more operations of two steps than there are slots.
  void work_in_place() {
    for (AgreementScript::Phase& phase : script_.phases) {
      const bool may_wait = phase.sums() <= 1 && phase.operations.size() <= 2;
      if (phase.is_reordered && !may_wait) script_.narrow = -1;
      for (Request& request : phase.operations) {
        for (TensorRef& tensor : request.tensors) tensor.input = tensor.output = &memory_;
      }
    }
  }
  void lengthen(int steps) {
    for (AgreementScript::Phase& phase : script_.phases) {
      for (int& own : phase.steps) own += steps;
    }
  }

  void draw_deviation() {
    using Deviation = AgreementScript::Deviation;
    script_.deviating = below(script_.ranks);
    script_.ends_at = 1 + below(100 * script_.ranks);
    switch (below(8)) {
      case 0:
        script_.deviation = Deviation::loss;
        return;
      case 1:
        script_.deviation = script_.servers > 0 ? Deviation::loss : Deviation::leave;
        return;
      case 2:
        script_.deviation = Deviation::shape;
        break;
      case 3:
        script_.deviation = Deviation::refusal;
        break;
      case 4:
        script_.deviation = Deviation::late;
        break;
      default:
        return;
    }
    script_.at.phase = below(static_cast<int>(script_.phases.size()));
    const AgreementScript::Phase& phase =
        script_.phases[static_cast<std::size_t>(script_.at.phase)];
    script_.at.step = below(*std::max_element(phase.steps.begin(), phase.steps.end()) + 1);
    script_.at.index = below(static_cast<int>(phase.operations.size()));
    // A rank that is late for good holds up a join, which may then end with an error of its own.
    const bool has_join = std::any_of(script_.phases.begin(), script_.phases.end(),
                                      [](const auto& one) { return one.joins; });
    if (script_.deviation == Deviation::late && has_join) script_.deviation = Deviation::shape;
  }

  static inline std::byte memory_{};  // never read nor written
  std::mt19937_64 random_;
  AgreementScript script_;
};

}  // namespace rdmacoll
