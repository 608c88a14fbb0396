#include <algorithm>
#include <bit>
#include <vector>

#include "collectives/algorithms.h"
#include "collectives/builder.h"
#include "collectives/choose.h"
#include "collectives/doubling.h"
#include "collectives/node_members.h"
#include "collectives/shared_stages.h"
#include "collectives/traffic.h"

namespace rdmacoll {
namespace {

// Whether a block of nodes has more than one rank, so that its data is a sum.
bool is_sum_of_block(const std::vector<std::vector<int>>& nodes, int block, int node) {
  const int count = static_cast<int>(nodes.size());
  return nodes[node].size() > 1 || size_of_block(count, block, node) > 1;
}

// The leader of node `mine` joins its sum with those of all other nodes: recursive doubling, as
// between ranks. Blocks of nodes double, and an incomplete last block serves several partners.
Slice join_nodes(Builder& program, const std::vector<std::vector<int>>& nodes, int mine,
                 Slice sum) {
  const int count = static_cast<int>(nodes.size());
  for (int block = 1; block < count; block *= 2) {
    const int begin = mine / block * block;
    const bool is_lower = begin / block % 2 == 0;
    const int sibling = is_lower ? begin + block : begin - block;
    const int siblings = std::min(block, count - sibling);
    if (siblings <= 0) continue;
    const int members = std::min(block, count - begin);
    for (int i = mine - begin; i < siblings; i += members) {
      program.send(nodes[sibling + i].front(), sum);
    }
    const int partner = doubling_partner(count, block, mine);
    const Slice theirs = program.addend(0, 1, is_sum_of_block(nodes, block, partner));
    program.receive(nodes[partner].front(), theirs);
    const bool is_last = block * 2 >= count;
    sum = program.joined(is_lower ? sum : theirs, is_lower ? theirs : sum, is_last);
  }
  return sum;
}

}  // namespace

// Allreduce for nodes with several ranks. The first rank of each node, its leader, adds the data of
// the node. The leaders sum all nodes by recursive doubling, and each gives the result to its node.
// In each round a node sends one message, where recursive doubling of all ranks sends one for each
// rank. Canonical for the same nodes as two levels are.
Schedule leaders_allreduce(const Shape& shape) {
  const std::vector<std::vector<int>> nodes = node_members(shape);
  const auto mine = std::ranges::find_if(nodes, [&](const std::vector<int>& node) {
    return std::ranges::binary_search(node, shape.rank);
  });
  Builder program(shape, 1);
  const Slice own = program.contribution(0);
  if (mine->front() != shape.rank) {
    program.send(mine->front(), own);
    program.receive(mine->front(), program.output(0));
    return program.finish();
  }
  std::vector<Slice> sources{own};
  for (std::size_t i = 1; i < mine->size(); ++i) {
    sources.push_back(program.scratch(0));
    program.receive((*mine)[i], sources.back());
  }
  const bool is_alone = nodes.size() == 1;
  Slice sum = own;
  if (mine->size() > 1) {
    sum = is_alone ? program.output(0) : program.addend(0, 1, true);
    program.reduce(sum, sources, is_alone);
  } else if (is_alone) {
    program.copy(program.output(0), own, true);
  }
  join_nodes(program, nodes, static_cast<int>(mine - nodes.begin()), sum);
  for (std::size_t i = 1; i < mine->size(); ++i) program.send((*mine)[i], program.output(0));
  return program.finish();
}

namespace {

void leaders_traffic(Traffic& traffic) {
  const std::vector<std::vector<int>> nodes = node_members(traffic.shape());
  const int count = static_cast<int>(nodes.size());
  traffic.nodes_are_alike(std::has_single_bit(static_cast<unsigned>(count)));
  const double bytes = traffic.segment();
  const auto each_member = [&](auto visit) {  // a leader, and another rank of its node
    for (const std::vector<int>& node : nodes) {
      for (std::size_t i = 1; i < node.size(); ++i) visit(node.front(), node[i]);
    }
  };
  each_member([&](int leader, int member) {
    traffic.pack(member, leader, bytes);
    traffic.send(member, leader, bytes);
  });
  traffic.deliver();
  for (const std::vector<int>& node : nodes) {
    const auto others = static_cast<int>(node.size()) - 1;
    if (others > 0) traffic.sum(node.front(), traffic.sum_bytes(bytes, count > 1), others);
  }
  for (int block = 1; block < count; block *= 2) {
    for (int node = 0; node < count; ++node) {
      const int from = doubling_partner(count, block, node);
      if (from < 0) continue;
      const bool is_sum = is_sum_of_block(nodes, block, from);
      if (!is_sum) traffic.pack(nodes[from].front(), nodes[node].front(), bytes);
      traffic.send(nodes[from].front(), nodes[node].front(), traffic.sum_bytes(bytes, is_sum));
    }
    traffic.deliver();
    const bool is_last = 2 * block >= count;
    for (int node = 0; node < count; ++node) {
      if (doubling_partner(count, block, node) < 0) continue;
      traffic.sum(nodes[node].front(), traffic.sum_bytes(bytes, !is_last), 1);
    }
  }
  for (const std::vector<int>& node : nodes) {
    if (node.size() > 1) traffic.pack_result(node[0], node[1], bytes, false);
  }
  each_member([&](int leader, int member) { traffic.move(leader, member, bytes); });
  traffic.deliver();
}

}  // namespace

extern constinit const AlgorithmRow leaders_row{.algorithm = Algorithm{23},
                                                .name = "leaders",
                                                .make = leaders_allreduce,
                                                .result = AlgorithmRow::Result::sum,
                                                .traffic = leaders_traffic,
                                                .canonical_for = are_nodes_canonical,
                                                .memory = memory_of_all_data,
                                                .by_node = true,
                                                .for_little = true};

}  // namespace rdmacoll
