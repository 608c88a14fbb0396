// Checks that the scripts of seeds cover every kind, fault and mode, and their combinations.
#include <gtest/gtest.h>

#include <map>
#include <set>
#include <string>
#include <vector>

#include "sim/script.h"

namespace rdmacoll {
namespace {

TEST(SimulatedScripts, cover_every_fault_and_several_world_sizes) {
  std::set<Fault> faults;
  std::set<int> ranks;
  for (uint64_t seed = 0; seed < 150; ++seed) {
    const SimScript script = make_script(seed);
    faults.insert(script.fault);
    ranks.insert(script.ranks);
  }
  EXPECT_EQ(faults.size(), 12u);
  EXPECT_GE(ranks.size(), 7u);
}

// One of the kinds is an allreduce for which the engine chooses the result's memory.
TEST(SimulatedScripts, refuse_the_result_of_every_kind_that_asks_for_memory) {
  std::map<Kind, int> refused, planned;
  for (uint64_t seed = 0; seed < 3000; ++seed) {
    const SimScript script = make_script(seed);
    if (script.fault != Fault::refuse) continue;
    const SimOperation& target = script.phases[script.fault_phase][script.fault_operation];
    ++refused[target.kind];
    if (script.plan_repeats > 0 && script.fault_phase > 6) ++planned[target.kind];
  }
  for (const Kind kind : {Kind::allreduce, Kind::allgather, Kind::reducescatter, Kind::alltoall,
                          Kind::gather, Kind::scatter}) {
    EXPECT_GT(refused[kind], 8) << name_of(kind);
  }
  EXPECT_EQ(refused.size(), 6u);
  EXPECT_GT(planned[Kind::allreduce], 8);
}

TEST(SimulatedScripts, cover_parameter_servers_and_every_end_of_theirs) {
  std::set<int> servers;
  std::set<Fault> of_servers;
  int planned = 0;
  for (uint64_t seed = 0; seed < 600; ++seed) {
    const SimScript script = make_script(seed);
    servers.insert(script.servers);
    if (script.servers > 0 && script.plan_repeats > 0) ++planned;
    if (script.victim >= script.ranks) of_servers.insert(script.fault);
  }
  EXPECT_EQ(servers, (std::set{0, 1, 2, 3}));
  EXPECT_GT(planned, 50);
  for (const Fault fault : {Fault::kill, Fault::nap, Fault::stop, Fault::cut, Fault::unplug,
                            Fault::exhaust, Fault::dry}) {
    EXPECT_TRUE(of_servers.contains(fault)) << static_cast<int>(fault);
  }
}

TEST(SimulatedScripts, cover_every_kind) {
  std::set<Kind> kinds;
  for (uint64_t seed = 0; seed < 150; ++seed) {
    for (const auto& phase : make_script(seed).phases) {
      for (const SimOperation& operation : phase) kinds.insert(operation.kind);
    }
  }
  for (uint8_t number = 0; is_known(static_cast<Kind>(number)); ++number) {
    EXPECT_TRUE(kinds.contains(static_cast<Kind>(number))) << int{number};
  }
}

TEST(SimulatedScripts, cover_dtypes_operators_and_even_exchanges) {
  std::map<Dtype, int> reduced, moved;
  std::map<ReduceOp, int> operators;
  int refused_products = 0, even = 0, planned_even = 0;
  for (uint64_t seed = 0; seed < 150; ++seed) {
    const SimScript script = make_script(seed);
    for (const auto& phase : script.phases) {
      for (const SimOperation& operation : phase) {
        if (operation.shapes.empty()) continue;
        const bool reduces = row_of(operation.kind).reduces;
        const int ranks = script.ranks_of(operation.set);
        ++(reduces ? reduced : moved)[operation.dtype];
        if (reduces) ++operators[operation.op];
        refused_products += operation.op == ReduceOp::product && operation.is_refused(ranks);
        if (operation.kind != Kind::alltoall || ranks < 3) continue;
        const auto& first = operation.rows.front();
        const std::vector<int64_t> all(first.size(), first.front());
        if (first.front() == 0 ||
            operation.rows != std::vector<std::vector<int64_t>>(first.size(), all)) {
          continue;
        }
        ++even;
        planned_even += script.plan_repeats > 0;
      }
    }
  }
  for (int number = 0; number < static_cast<int>(Dtype::boolean); ++number) {
    const auto dtype = static_cast<Dtype>(number);
    EXPECT_GT(reduced[dtype], 20) << name_of(dtype);
  }
  EXPECT_GT(moved[Dtype::boolean], 20);
  EXPECT_GT(reduced[Dtype::boolean], 10);
  EXPECT_GT(moved[Dtype::uint16], 10);
  for (int op = 0; op < kReduceOps; ++op) {
    EXPECT_GT(operators[static_cast<ReduceOp>(op)], 50) << op;
  }
  EXPECT_GT(refused_products, 10);
  EXPECT_GT(even, 20);
  EXPECT_GT(planned_even, 20);
}

// Operations of every kind repeat, so that ranks may follow a plan.
TEST(SimulatedScripts, cover_repetitions_of_every_kind) {
  std::map<Kind, int> repeated;
  for (uint64_t seed = 0; seed < 150; ++seed) {
    const SimScript script = make_script(seed);
    for (std::size_t i = 0; script.plan_repeats > 0 && i + 1 < script.phases.size(); ++i) {
      if (script.phases[i].size() != script.phases[i + 1].size()) continue;
      for (const SimOperation& operation : script.phases[i]) ++repeated[operation.kind];
    }
  }
  for (uint8_t number = 0; static_cast<Kind>(number) != Kind::join; ++number) {
    EXPECT_GT(repeated[static_cast<Kind>(number)], 20) << int{number};
  }
}

TEST(SimulatedScripts, cover_sets_of_processes_that_overlap) {
  int overlapping = 0, disjoint = 0;
  std::size_t operations = 0;
  for (uint64_t seed = 0; seed < 150; ++seed) {
    const SimScript script = make_script(seed);
    for (const auto& phase : script.phases) {
      for (const SimOperation& operation : phase) operations += operation.set > 0 ? 1 : 0;
    }
    for (int rank = 0; rank < script.ranks; ++rank) {
      int sets = 0;
      for (std::size_t set = 1; set <= script.sets.size(); ++set) {
        sets += script.rank_in(set, rank) >= 0 ? 1 : 0;
      }
      ++(sets > 1 ? overlapping : disjoint);
    }
  }
  EXPECT_GT(overlapping, 20);
  EXPECT_GT(disjoint, 20);
  EXPECT_GT(operations, 100u);
}

TEST(SimulatedScripts, cover_sets_that_come_and_go) {
  int added = 0, removed = 0;
  for (uint64_t seed = 0; seed < 150; ++seed) {
    for (const SimSetChange& change : make_script(seed).changes) {
      ++(change.is_removed ? removed : added);
    }
  }
  EXPECT_GT(added, 30);
  EXPECT_GT(removed, 20);
}

TEST(SimulatedScripts, cover_ranks_that_join_early) {
  int early = 0, refused = 0;
  for (uint64_t seed = 0; seed < 150; ++seed) {
    const SimScript script = make_script(seed);
    for (const auto& phase : script.phases) {
      for (const SimOperation& operation : phase) {
        const int ranks = script.ranks_of(operation.set);
        early += operation.givers > 0 && operation.givers < ranks ? 1 : 0;
        refused += operation.is_refused(ranks) ? 1 : 0;
      }
    }
  }
  EXPECT_GT(early, 50);
  EXPECT_GT(refused, 10);
}

// Each fault occurs in worlds with process sets, with plans, with servers, and beside every kind of
// operation. If an operation is missing, no rank joins, since a join would end this operation.
TEST(SimulatedScripts, have_every_fault_beside_everything_else) {
  std::map<Fault, std::map<std::string, int>> beside;
  for (uint64_t seed = 0; seed < 3000; ++seed) {
    const SimScript script = make_script(seed);
    std::set<std::string> has;
    for (const auto& phase : script.phases) {
      for (const SimOperation& operation : phase) {
        has.insert(std::string(name_of(operation.kind)));
        if (operation.set > 0) has.insert("a set");
      }
    }
    if (script.plan_repeats > 0) has.insert("plans");
    if (script.servers > 0) has.insert("servers");
    for (const std::string& what : has) ++beside[script.fault][what];
  }
  std::vector<std::string> wanted = {"a set", "plans", "servers"};
  for (uint8_t number = 0; is_known(static_cast<Kind>(number)); ++number) {
    wanted.emplace_back(name_of(static_cast<Kind>(number)));
  }
  for (auto& [fault, counts] : beside) {
    for (const std::string& what : wanted) {
      if (fault == Fault::missing && what == name_of(Kind::join)) continue;
      EXPECT_GE(counts[what], 5) << static_cast<int>(fault) << " beside " << what;
    }
  }
}

}  // namespace
}  // namespace rdmacoll
