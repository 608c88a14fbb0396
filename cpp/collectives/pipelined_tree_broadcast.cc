#include <algorithm>
#include <bit>
#include <utility>
#include <vector>

#include "collectives/algorithms.h"
#include "collectives/builder.h"
#include "collectives/choose.h"
#include "collectives/in_node.h"
#include "collectives/traffic.h"

namespace rdmacoll {
namespace {

constexpr int kRoot = 0, kNobody = -1;  // neighbours of a node that have no number

struct Node {
  int parent = kRoot, left = kNobody, right = kNobody;
};

// The binary tree whose nodes 1 to `nodes` are numbered from left to right. The top of a range is a
// power of two beyond its beginning, so all inner nodes are even and odd nodes are leaves.
Node in_order_node(int number, int nodes) {
  const auto top = [](int first, int last) {
    const auto count = static_cast<unsigned>(last - first + 1);
    return count == 0 ? kNobody : first - 1 + static_cast<int>(std::bit_floor(count));
  };
  Node node;
  int first = 1, last = nodes;
  for (int at = top(first, last); at != number; at = top(first, last)) {
    node.parent = at;
    if (number < at) {
      last = at - 1;
    } else {
      first = at + 1;
    }
  }
  node.left = top(first, number - 1);
  node.right = top(number + 1, last);
  return node;
}

// Two trees over all ranks but the root. Each rank is an inner node of one tree at most. The second
// tree mirrors the first, or is shifted by one if a mirror would map even numbers to even numbers.
class TwoTrees {
 public:
  explicit TwoTrees(const Shape& shape) : shape_(shape), nodes_(shape.ranks - 1) {}

  Node at(int tree, int rank) const {
    const int number = distance(rank);
    Node node = in_order_node(tree == 0 ? number : other(number), nodes_);
    for (int* neighbour : {&node.parent, &node.left, &node.right}) {
      if (*neighbour != kNobody) *neighbour = rank_of(tree, *neighbour);
    }
    return node;
  }
  int top(int tree) const {
    return rank_of(tree, static_cast<int>(std::bit_floor(unsigned(nodes_))));
  }

 private:
  int distance(int rank) const { return (rank - shape_.root + shape_.ranks) % shape_.ranks; }
  bool is_mirrored() const { return nodes_ % 2 == 0; }
  int other(int number) const { return is_mirrored() ? nodes_ + 1 - number : number % nodes_ + 1; }
  int rank_of(int tree, int number) const {
    if (tree == 1 && number != kRoot) {
      number = is_mirrored() ? nodes_ + 1 - number : (number + nodes_ - 2) % nodes_ + 1;
    }
    return (number + shape_.root) % shape_.ranks;
  }

  const Shape& shape_;
  int nodes_;
};

}  // namespace

// Broadcast of large messages. Each half of a segment goes along its own binary tree, and the inner
// nodes of the first tree are leaves of the second. While segments follow each other, only the root
// sends more than it receives. The root of a binomial tree sends everything log2 p times. Sanders,
// Speck and Traeff, "Two-tree algorithms for full bandwidth broadcast, reduction and scan", 2009.
Schedule pipelined_tree_broadcast(const Shape& shape) {
  constexpr int kTrees = 2;
  Builder program(shape.ranks, shape.rank, kTrees);
  const TwoTrees trees(shape);
  if (shape.rank == shape.root) {
    program.copy(program.output(0, kTrees), program.input(0, kTrees));
    for (int tree = 0; tree < kTrees && shape.ranks > 1; ++tree) {
      program.send(trees.top(tree), program.output(tree));
    }
    return program.finish();
  }
  for (int tree = 0; tree < kTrees; ++tree) {
    const Node node = trees.at(tree, shape.rank);
    program.receive(node.parent, program.output(tree));
    for (const int child : {node.left, node.right}) {
      if (child != kNobody) program.send(child, program.output(tree));
    }
  }
  return program.finish();
}

namespace {

// A rank reads both halves, and passes one of them on to two others. One of the ranks on a half's
// way has just read the other half.
double pipelined_tree_in_node(const InNode& node) {
  const double half = node.segment() / 2;
  const int depth = node.doublings();
  const double root = node.copy(node.segment()) + 2 * node.pack(half) + node.messages(2, half);
  const double passes = node.read(half) + node.pack(half) + node.messages(2, half);
  const double last = node.read(half) + node.messages(1, half);
  const double inner = last + (depth > 1 ? passes + node.messages(1, half) : last);
  const double passage = node.alone(root) + (depth - 1) * (passes + node.messages(1, half)) +
                         (depth > 1 ? 2 : 1) * last;
  return node.time_of_broadcast(passage, root, inner, (depth + 1) * node.round());
}

// Rank 0 is the root. The halves go on independently.
void pipelined_tree_traffic(Traffic& traffic) {
  const int ranks = traffic.ranks();
  const double half = traffic.segment() / 2;
  const Shape shape{.ranks = ranks};
  const TwoTrees trees(shape);
  traffic.copy(0, 2 * half);  // both halves at once
  const bool is_root_pinned =
      ranks > 1 && !(traffic.are_near(0, trees.top(0)) && traffic.are_near(0, trees.top(1)));
  traffic.side_by_side(ranks > 1 ? 2 : 0, [&](int tree) {
    std::vector<bool> is_pinned(static_cast<std::size_t>(ranks));
    is_pinned[0] = is_root_pinned;
    for (int rank = 1; rank < ranks; ++rank) {
      const int parent = trees.at(tree, rank).parent;
      if (!traffic.are_near(rank, parent)) is_pinned[rank] = is_pinned[parent] = true;
    }
    std::vector<int> level, next;
    const auto pass = [&](int rank, std::initializer_list<int> children) {
      bool is_packed = false;
      for (const int child : children) {
        if (child == kNobody) continue;
        if (!is_packed && traffic.are_near(rank, child)) {
          traffic.pack_result(rank, child, half, is_pinned[rank]);
          is_packed = true;
        }
        traffic.move(rank, child, half, is_pinned[child]);
        next.push_back(child);
      }
    };
    pass(0, {trees.top(tree)});
    traffic.unpack(0, half, is_pinned[0]);
    while (!next.empty()) {
      traffic.deliver();
      level = std::exchange(next, {});
      for (const int rank : level) {
        const Node node = trees.at(tree, rank);
        pass(rank, {node.left, node.right});
      }
    }
  });
}

}  // namespace

extern constinit const AlgorithmRow pipelined_tree_row{.algorithm = Algorithm{8},
                                                       .name = "pipelined_tree",
                                                       .make = pipelined_tree_broadcast,
                                                       .result = AlgorithmRow::Result::root_value,
                                                       .cost_in_node = pipelined_tree_in_node,
                                                       .traffic = pipelined_tree_traffic,
                                                       .segments = Segments::tree};

}  // namespace rdmacoll
