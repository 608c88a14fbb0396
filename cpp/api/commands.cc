#include "api/commands.h"

#include <vector>

#include "base/text.h"
#include "collectives/algorithms.h"
#include "collectives/lower.h"
#include "collectives/verify.h"

namespace rdmacoll {
namespace {

// As written, and lowered for nodes of several sizes with the caller's memory visible or not.
std::vector<std::vector<Schedule>> forms_of(const AlgorithmRow& row, int ranks) {
  std::vector<Schedule> plain;
  for (int rank = 0; rank < ranks; ++rank)
    plain.push_back(row.make({.ranks = ranks, .rank = rank}));
  std::vector<std::vector<Schedule>> forms{plain};
  for (const int per_node : {2, ranks}) {
    for (const bool visible : {false, true}) {
      std::vector<Schedule> lowered;
      for (const Schedule& schedule : plain) {
        Placement placement{{}, visible, visible};
        for (int peer = 0; peer < ranks; ++peer) {
          placement.views.push_back(peer / per_node == schedule.rank / per_node);
        }
        lowered.push_back(lower(schedule, placement));
      }
      forms.push_back(std::move(lowered));
    }
  }
  return forms;
}

}  // namespace

std::string verify_schedules_json(int ranks_first, int ranks_last, bool& ok) {
  uint64_t schedules = 0;
  std::vector<std::string> failures;
  for (const AlgorithmRow& row : algorithm_table()) {
    for (int ranks = ranks_first; ranks <= ranks_last; ++ranks) {
      for (const std::vector<Schedule>& form : forms_of(row, ranks)) {
        schedules += form.size();
        const std::string complaint = verify(form, row.result, 0, row.canonical);
        if (!complaint.empty()) {
          failures.push_back(json_quote(cat(row.name, " with ", ranks, " ranks: ", complaint)));
        }
      }
    }
  }
  ok = failures.empty();
  return cat("{\"schedules\": ", schedules, ", \"failed\": ", failures.size(), ", \"failures\": [",
             join(failures, ", "), "]}");
}

}  // namespace rdmacoll
