#include "api/commands.h"

#include <set>
#include <vector>

#include "base/text.h"
#include "collectives/algorithms.h"
#include "collectives/lower.h"
#include "collectives/verify.h"

namespace rdmacoll {
namespace {

// As written, and lowered for nodes of several sizes, between which devices move the bytes, with
// the caller's memory visible to them or not.
std::vector<std::vector<Schedule>> forms_of(const AlgorithmRow& row, Shape shape) {
  std::vector<Schedule> plain;
  for (shape.rank = 0; shape.rank < shape.ranks; ++shape.rank) plain.push_back(row.make(shape));
  std::vector<std::vector<Schedule>> forms{plain};
  for (const int per_node : {2, shape.ranks}) {
    for (const bool visible : {false, true}) {
      std::vector<Schedule> lowered;
      for (const Schedule& schedule : plain) {
        Placement placement{{}, visible, visible, std::vector<bool>(shape.ranks, true)};
        for (int peer = 0; peer < shape.ranks; ++peer) {
          placement.views.push_back(peer / per_node == schedule.rank / per_node);
        }
        lowered.push_back(lower(schedule, placement));
      }
      forms.push_back(std::move(lowered));
    }
  }
  return forms;
}

// What a schedule depends on beside the number of ranks: who is the root, and whether inputs are
// scaled first.
std::vector<Shape> shapes_of(const AlgorithmRow& row, int ranks) {
  std::vector<Shape> shapes;
  const std::set<int> roots =
      has_root(row.result) ? std::set{0, 1 % ranks, ranks / 2, ranks - 1} : std::set{0};
  for (const int root : roots) {
    shapes.push_back({.ranks = ranks, .root = root});
    if (is_sum(row.result)) shapes.push_back({.ranks = ranks, .root = root, .prescaled = true});
  }
  return shapes;
}

}  // namespace

std::string verify_schedules_json(int ranks_first, int ranks_last, bool& ok) {
  uint64_t schedules = 0;
  std::vector<std::string> failures;
  for (const AlgorithmRow& row : algorithm_table()) {
    for (int ranks = ranks_first; ranks <= ranks_last; ++ranks) {
      for (const Shape& shape : shapes_of(row, ranks)) {
        for (const std::vector<Schedule>& form : forms_of(row, shape)) {
          schedules += form.size();
          const std::string complaint = verify(form, row.result, shape.root, row.canonical);
          if (!complaint.empty()) {
            failures.push_back(
                json_quote(cat(row.name, " with ", ranks, " ranks, root ", shape.root,
                               shape.prescaled ? ", prescaled: " : ": ", complaint)));
          }
        }
      }
    }
  }
  ok = failures.empty();
  return cat("{\"schedules\": ", schedules, ", \"failed\": ", failures.size(), ", \"failures\": [",
             join(failures, ", "), "]}");
}

}  // namespace rdmacoll
