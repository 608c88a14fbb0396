#include <algorithm>
#include <bit>
#include <numeric>
#include <vector>

#include "collectives/algorithms.h"
#include "collectives/binary_blocks.h"
#include "collectives/builder.h"
#include "collectives/node_members.h"
#include "collectives/traffic.h"

namespace rdmacoll {
namespace {

// Limits of shares and of parts. If the sizes of nodes have no small common multiple, more shares
// would make short messages. Numbers of parts must fit in 16 bits.
constexpr int kSharesMax = 64, kPartsMax = 1 << 14;

struct Range {
  int begin = 0, end = 0;
};

// The ranks of each node, nodes in the order of their first rank, and the owners of shares. The
// ranks of a node divide all shares among themselves, in order.
class Nodes {
 public:
  explicit Nodes(const Shape& shape) : members_(node_members(shape)) {
    for (const std::vector<int>& node : members_) {
      const auto found = std::ranges::find(node, shape.rank);
      if (found == node.end()) continue;
      mine_ = static_cast<int>(&node - members_.data());
      local_ = static_cast<int>(found - node.begin());
    }
    int most = 1;
    shares_ = 1;
    are_shared_ = count() < shape.ranks;
    for (const std::vector<int>& node : members_) {
      const int size = static_cast<int>(node.size());
      most = std::max(most, size);
      shares_ = std::min(std::lcm(shares_, size), kSharesMax + 1);
    }
    if (shares_ > std::min(kSharesMax, kPartsMax / binary_block_parts(count()))) shares_ = most;
  }

  int count() const { return static_cast<int>(members_.size()); }
  bool are_shared() const { return are_shared_; }  // some node has several ranks
  int shares() const { return shares_; }
  int mine() const { return mine_; }
  int local_rank() const { return local_; }
  const std::vector<int>& neighbours() const { return members_[mine_]; }     // this rank included
  const std::vector<std::vector<int>>& members() const { return members_; }  // by node
  Range shares_of(int local_rank) const {
    return shares_of(local_rank, static_cast<int>(neighbours().size()));
  }
  Range shares_of(int local_rank, int size) const {
    return {first_share(local_rank, size), first_share(local_rank + 1, size)};
  }
  // The owner of the share in each node.
  std::vector<int> owners(int share) const {
    std::vector<int> owners;
    for (const std::vector<int>& node : members_) {
      owners.push_back(
          node[static_cast<std::size_t>(share) * node.size() / static_cast<std::size_t>(shares_)]);
    }
    return owners;
  }

 private:
  // The least share with share * size / shares_ >= local_rank.
  int first_share(int local_rank, int size) const {
    return (local_rank * shares_ + size - 1) / size;
  }

  std::vector<std::vector<int>> members_;
  int mine_ = 0, local_ = 0, shares_ = 1;
  bool are_shared_ = false;
};

class TwoLevels {
 public:
  explicit TwoLevels(const Shape& shape)
      : nodes_(shape),
        unit_(binary_block_parts(nodes_.count())),
        program_(shape, nodes_.shares() * unit_),
        owned_(nodes_.shares_of(nodes_.local_rank())) {}

  Schedule run() {
    reduce_within_node();
    if (nodes_.count() > 1) allreduce_between_owners();
    gather_within_node();
    return program_.finish();
  }

 private:
  int neighbours() const { return static_cast<int>(nodes_.neighbours().size()); }
  int rank_at(int local_rank) const { return nodes_.neighbours()[local_rank]; }
  // Each rank begins with a different partner.
  int partner(int distance) const { return (nodes_.local_rank() + distance) % neighbours(); }
  Slice contribution(const Range& shares) const {
    return program_.contribution(shares.begin * unit_, (shares.end - shares.begin) * unit_);
  }
  Slice output(const Range& shares) const {
    return program_.output(shares.begin * unit_, (shares.end - shares.begin) * unit_);
  }
  Slice partial(const Range& shares) const {
    return program_.partial(shares.begin * unit_, (shares.end - shares.begin) * unit_);
  }
  template <typename Visit>
  // Visits the partners that own a share.
  void each_partner(Visit visit) {
    for (int distance = 1; distance < neighbours(); ++distance) {
      const Range shares = nodes_.shares_of(partner(distance));
      if (shares.begin < shares.end) visit(partner(distance), shares);
    }
  }
  bool owns_something() const { return owned_.begin < owned_.end; }

  void reduce_within_node() {
    each_partner([this](int local, const Range& shares) {
      program_.send(rank_at(local), contribution(shares));
    });
    mine_ = contribution(owned_);
    const bool last = nodes_.count() == 1;
    if (neighbours() == 1) {
      if (last) program_.copy(output(owned_), mine_, true);
      if (!last && nodes_.are_shared()) widen_mine();
      return;
    }
    if (!owns_something()) return;
    std::vector<Slice> sources(nodes_.neighbours().size(), mine_);
    for (int distance = neighbours() - 1; distance > 0; --distance) {
      Slice& source = sources[partner(distance)];
      source = program_.scratch(mine_.first_part, mine_.parts);
      program_.receive(rank_at(partner(distance)), source);
    }
    mine_ = last ? output(owned_) : partial(owned_);
    program_.reduce(mine_, sources, last);
  }

  // Between nodes all members must contribute sums of the same width.
  void widen_mine() {
    const Slice wide = partial(owned_);
    if (!wide.wide) return;
    program_.reduce(wide, {mine_}, false);
    mine_ = wide;
  }

  // Neighbouring shares with the same owners go together in one allreduce.
  void allreduce_between_owners() {
    for (Range range{owned_.begin, owned_.begin}; range.begin < owned_.end;
         range.begin = range.end) {
      const std::vector<int> owners = nodes_.owners(range.begin);
      while (range.end < owned_.end && nodes_.owners(range.end) == owners) ++range.end;
      Slice slice = mine_;
      slice.first_part = static_cast<uint16_t>(range.begin * unit_);
      slice.parts = static_cast<uint16_t>((range.end - range.begin) * unit_);
      allreduce_by_blocks(program_, owners, nodes_.mine(), slice);
    }
  }

  void gather_within_node() {
    for (int distance = 1; distance < neighbours() && owns_something(); ++distance) {
      program_.send(rank_at(partner(distance)), output(owned_));
    }
    for (int distance = neighbours() - 1; distance > 0; --distance) {
      const Range shares = nodes_.shares_of(partner(distance));
      if (shares.begin < shares.end) {
        program_.receive(rank_at(partner(distance)), output(shares));
      }
    }
  }

  Nodes nodes_;
  int unit_;  // parts of a share
  Builder program_;
  Range owned_;  // shares
  Slice mine_;   // the sum of owned_ so far
};

}  // namespace

// Allreduce for nodes with several ranks. The ranks of a node first sum the shares that each of
// them owns. The owners of a share in all nodes then sum it by halving and doubling, and the ranks
// of each node exchange the results. Between nodes no more moves than if each node had one rank,
// and all ranks of a node take part. Canonical if each node has consecutive ranks, a power of two
// of them (the last node may be smaller).
//
// After Jia et al., "Highly scalable deep learning training system with mixed-precision", 2018.
// Here ranks own shares, so that no rank carries everything if nodes have different sizes.
Schedule two_level_allreduce(const Shape& shape) { return TwoLevels(shape).run(); }

namespace {

void two_level_traffic(Traffic& traffic) {
  const Shape shape = traffic.shape();
  const Nodes nodes(shape);
  traffic.nodes_are_alike(std::has_single_bit(static_cast<unsigned>(nodes.count())));
  const double share = traffic.segment() / nodes.shares();
  const auto each_pair = [&](auto visit) {  // a rank, another one of its node, and its shares
    for (const std::vector<int>& node : nodes.members()) {
      const auto size = static_cast<int>(node.size());
      for (int distance = 1; distance < size; ++distance) {
        for (int local = 0; local < size; ++local) {
          const int other = (local + distance) % size;
          visit(node[local], node[other], nodes.shares_of(local, size),
                nodes.shares_of(other, size));
        }
      }
    }
  };
  const auto bytes_of = [&](const Range& shares) { return (shares.end - shares.begin) * share; };
  each_pair([&](int rank, int other, const Range&, const Range& theirs) {
    if (theirs.begin == theirs.end) return;
    traffic.pack(rank, other, bytes_of(theirs));
  });
  each_pair([&](int rank, int other, const Range&, const Range& theirs) {
    if (theirs.begin != theirs.end) traffic.send(rank, other, bytes_of(theirs));
  });
  traffic.deliver();
  for (const std::vector<int>& node : nodes.members()) {
    const auto size = static_cast<int>(node.size());
    for (int local = 0; local < size; ++local) {
      const Range own = nodes.shares_of(local, size);
      if (own.begin == own.end) continue;
      if (size > 1 || (nodes.are_shared() && traffic.sum_bytes(1, true) > 1)) {
        traffic.sum(node[local], traffic.sum_bytes(bytes_of(own), true), size - 1);
      }
    }
  }
  // Neighbouring shares with the same owners go together, and all others independently.
  std::vector<BlockTraffic> groups;
  for (int first = 0, end = 0; first < nodes.shares(); first = end) {
    std::vector<int> owners = nodes.owners(first);
    for (end = first + 1; end < nodes.shares() && nodes.owners(end) == owners;) ++end;
    groups.push_back({.members = std::move(owners),
                      .bytes = (end - first) * share,
                      .are_sums = nodes.are_shared()});
  }
  traffic.side_by_side(static_cast<int>(groups.size()),
                       [&](int number) { allreduce_by_blocks(traffic, groups[number]); });
  each_pair([&](int rank, int other, const Range& own, const Range&) {
    if (own.begin == own.end) return;
    const bool is_first = other == rank + 1 || (rank > other && other == rank - 1);
    if (is_first) traffic.pack_result(rank, other, bytes_of(own), true);
    traffic.move(rank, other, bytes_of(own));
  });
  traffic.deliver();
}

}  // namespace

extern constinit const AlgorithmRow two_level_row{.algorithm = Algorithm{7},
                                                  .name = "two_level",
                                                  .make = two_level_allreduce,
                                                  .result = AlgorithmRow::Result::sum,
                                                  .traffic = two_level_traffic,
                                                  .canonical_for = are_nodes_canonical,
                                                  .segments = Segments::stages,
                                                  .by_node = true,
                                                  .other_names = "hierarchical_copy hierarchical"};

}  // namespace rdmacoll
