#include "api/commands.h"

#include <bit>
#include <set>
#include <vector>

#include "base/text.h"
#include "collectives/algorithms.h"
#include "collectives/lower.h"
#include "collectives/verify.h"

namespace rdmacoll {
namespace {

// The schedules as written, and lowered for several node sizes. Devices move bytes between nodes.
// The callers' memory is visible to them, or not.
std::vector<std::vector<Schedule>> forms_of(const AlgorithmRow& row, Shape shape) {
  std::vector<Schedule> plain;
  for (shape.rank = 0; shape.rank < shape.members(); ++shape.rank) {
    plain.push_back(row.make(shape));
  }
  std::vector<std::vector<Schedule>> forms{plain};
  for (const int per_node : {2, shape.members()}) {
    for (const CallerMemory memory :
         {CallerMemory::hidden, CallerMemory::visible, CallerMemory::device}) {
      std::vector<Schedule> lowered;
      for (const Schedule& schedule : plain) {
        Placement placement{{}, memory, memory, std::vector<bool>(shape.members(), true)};
        for (int peer = 0; peer < shape.members(); ++peer) {
          placement.views.push_back(peer / per_node == schedule.rank / per_node);
        }
        if (per_node == 2) placement.lends = placement.views;
        lowered.push_back(lower(schedule, placement));
      }
      forms.push_back(std::move(lowered));
    }
  }
  return forms;
}

struct Case {
  Shape shape;
  std::vector<int> nodes;
};

// Nodes of consecutive ranks (one, two and more in a node), nodes of different sizes, and ranks in
// round-robin order.
std::vector<std::vector<int>> nodes_of(const AlgorithmRow& row, int ranks) {
  if (!row.by_node) return {{}};
  std::vector<std::vector<int>> found = {{}};
  for (const int nodes : std::set{1, (ranks + 2) / 3, (ranks + 1) / 2}) {
    found.push_back(even_nodes(ranks, nodes));
  }
  std::vector<int> dealt, growing;
  for (int rank = 0; rank < ranks; ++rank) {
    dealt.push_back(rank % 3);
    growing.push_back(std::bit_width(static_cast<unsigned>(rank)));
  }
  found.push_back(dealt);
  found.push_back(growing);
  return found;
}

// The numbers of servers to check: one, a few, and more than there are ranks. Many ranks get fewer
// cases, since the check examines each step. Algorithms without servers get none.
std::set<int> servers_of(const AlgorithmRow& row, int ranks) {
  if (!row.by_servers) return {0};
  constexpr int kFewRanks = 16;
  return ranks <= kFewRanks ? std::set{1, 2, 3, ranks + 1} : std::set{1, 3};
}

// The parameters of schedules besides the number of ranks: root, scaled inputs, wide sums, nodes
// and servers.
std::vector<Case> cases_of(const AlgorithmRow& row, int ranks) {
  std::vector<Case> cases;
  const std::set<int> roots =
      has_root(row.result) ? std::set{0, 1 % ranks, ranks / 2, ranks - 1} : std::set{0};
  for (const std::vector<int>& nodes : nodes_of(row, ranks)) {
    for (const int root : roots) {
      for (const int servers : servers_of(row, ranks)) {
        for (const int form : {0, 1, 2, 3}) {
          if (form > 0 && !is_sum(row.result)) break;
          cases.push_back({{.ranks = ranks,
                            .root = root,
                            .prescaled = (form & 1) != 0,
                            .servers = servers,
                            .wide_sums = (form & 2) != 0},
                           nodes});
        }
      }
    }
  }
  return cases;
}

}  // namespace

std::string verify_schedules_json(int ranks_first, int ranks_last, bool& ok) {
  uint64_t schedules = 0;
  std::vector<std::string> failures, names;
  for (const AlgorithmRow& row : algorithm_table()) {
    names.push_back(json_quote(row.name));
    for (int ranks = ranks_first; ranks <= ranks_last; ++ranks) {
      for (Case& one : cases_of(row, ranks)) {
        Shape& shape = one.shape;
        shape.nodes = one.nodes;
        for (const std::vector<Schedule>& form : forms_of(row, shape)) {
          schedules += form.size();
          const std::string complaint =
              verify(form, row.result, shape.root, row.is_canonical(shape));
          if (!complaint.empty()) {
            failures.push_back(
                json_quote(cat(row.name, " with ", ranks, " ranks, ", shape.servers,
                               " servers, root ", shape.root, shape.prescaled ? ", prescaled" : "",
                               shape.wide_sums ? ", of 16-bit floats: " : ": ", complaint)));
          }
        }
      }
    }
  }
  ok = failures.empty();
  return cat("{\"algorithms\": [", join(names, ", "), "], \"schedules\": ", schedules,
             ", \"failed\": ", failures.size(), ", \"failures\": [", join(failures, ", "), "]}");
}

}  // namespace rdmacoll
