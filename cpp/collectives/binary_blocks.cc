#include "collectives/binary_blocks.h"

#include <bit>
#include <vector>

#include "base/status.h"

namespace rdmacoll {
namespace {

struct Block {
  int begin = 0, size = 0;  // members of the group
};

struct Share {
  int first = 0, parts = 0;
};

int largest_power_within(int count) { return static_cast<int>(std::bit_floor(unsigned(count))); }

// The blocks of a group, the largest first.
std::vector<Block> blocks_of(int members) {
  std::vector<Block> blocks;
  for (int begin = 0; begin < members; begin += blocks.back().size) {
    blocks.push_back({begin, largest_power_within(members - begin)});
  }
  return blocks;
}

// The share of member `index` of a block whose members have halved `all` down to one share each.
Share share_of(int index, int size, Share all) {
  for (int distance = 1; distance < size; distance *= 2) {
    all.parts /= 2;
    if ((index & distance) != 0) all.first += all.parts;
  }
  return all;
}

class BlockProgram {
 public:
  BlockProgram(Builder& program, std::span<const int> group, int index, const Slice& mine)
      : program_(program),
        group_(group),
        members_(static_cast<int>(group.size())),
        all_{mine.first_part, mine.parts},
        begins_with_sums_(mine.wide),
        sum_(mine) {
    RC_ASSERT(members_ > 1 && mine.parts % binary_block_parts(members_) == 0);
    const std::vector<Block> blocks = blocks_of(members_);
    std::size_t number = 0;
    while (blocks[number].begin + blocks[number].size <= index) ++number;
    block_ = blocks[number];
    if (number > 0) larger_ = blocks[number - 1];
    if (number + 1 < blocks.size()) smaller_ = blocks[number + 1];
    index_ = index - block_.begin;
  }

  void run() {
    halve();
    if (smaller_.size > 0) take_sum_of_smaller();
    if (larger_.size > 0) {
      give_to_larger();
      take_result_of_larger();
    }
    if (smaller_.size > 0) program_.send(partner_in_smaller(), sum_);
    redouble();
  }

 private:
  int rank_at(const Block& block, int index) const { return group_[block.begin + index]; }
  int partner_in_smaller() const { return rank_at(smaller_, index_ % smaller_.size); }
  Slice part_of_sum(int first, int parts) const {
    Slice slice = sum_;
    slice.first_part = static_cast<uint16_t>(first);
    slice.parts = static_cast<uint16_t>(parts);
    return slice;
  }

  // Reduce-scatter: afterwards sum_ is the sum over this block, of this rank's share.
  void halve() {
    for (int distance = 1; distance < block_.size; distance *= 2) {
      const bool upper = (index_ & distance) != 0;
      const int half = sum_.parts / 2;
      const int low = sum_.first_part, high = low + half;
      const int partner = rank_at(block_, index_ ^ distance);
      program_.send(partner, part_of_sum(upper ? low : high, half));
      add_from(partner, distance > 1, part_of_sum(upper ? high : low, half), !upper,
               block_.size == members_ && distance * 2 == members_);
    }
  }

  // sum_ = the slice from `rank` plus `held`, in rank order. `of_several`: the slice is itself a
  // sum.
  void add_from(int rank, bool of_several, Slice held, bool held_first, bool last) {
    const Slice theirs =
        program_.addend(held.first_part, held.parts, of_several || begins_with_sums_);
    program_.receive(rank, theirs);
    sum_ = last ? program_.output(held.first_part, held.parts)
                : program_.partial(held.first_part, held.parts);
    if (held_first) {
      program_.reduce(sum_, {held, theirs}, last);
    } else {
      program_.reduce(sum_, {theirs, held}, last);
    }
  }

  // The sum of the smaller block already includes all blocks after it.
  void take_sum_of_smaller() {
    add_from(partner_in_smaller(), smaller_.size > 1, sum_, true, block_.begin == 0);
  }

  // Visits those members of the larger block whose shares together make up this rank's share.
  template <typename Visit>
  void each_owner_in_larger(Visit visit) const {
    for (int owner = index_; owner < larger_.size; owner += block_.size) {
      const Share share = share_of(owner, larger_.size, all_);
      visit(rank_at(larger_, owner), share.first, share.parts);
    }
  }
  void give_to_larger() {
    each_owner_in_larger(
        [this](int rank, int first, int parts) { program_.send(rank, part_of_sum(first, parts)); });
  }
  void take_result_of_larger() {
    each_owner_in_larger([this](int rank, int first, int parts) {
      program_.receive(rank, program_.output(first, parts));
    });
    sum_ = program_.output(sum_.first_part, sum_.parts);
  }

  // Allgather: at each distance the partner has the other half of the range.
  void redouble() {
    for (int distance = block_.size / 2; distance > 0; distance /= 2) {
      const int partner = rank_at(block_, index_ ^ distance);
      const bool upper = (index_ & distance) != 0;
      const int parts = sum_.parts;
      const int low = upper ? sum_.first_part - parts : sum_.first_part;
      program_.send(partner, sum_);
      program_.receive(partner, program_.output(upper ? low : low + parts, parts));
      sum_ = program_.output(low, 2 * parts);
    }
  }

  Builder& program_;
  std::span<const int> group_;
  int members_;
  Share all_;
  bool begins_with_sums_;
  Block larger_, block_, smaller_;
  int index_ = 0;  // in block_
  Slice sum_;      // the sum of this rank's share so far
};

}  // namespace

int binary_block_parts(int members) { return largest_power_within(members); }

void allreduce_by_blocks(Builder& program, std::span<const int> group, int index, Slice mine) {
  BlockProgram(program, group, index, mine).run();
}

namespace {

class BlockRounds {
 public:
  BlockRounds(Traffic& traffic, const BlockTraffic& group)
      : traffic_(traffic),
        group_(group),
        blocks_(blocks_of(static_cast<int>(group.members.size()))),
        is_wide_(traffic.sum_bytes(1, true) > 1),
        is_pinned_(static_cast<std::size_t>(traffic.ranks())) {
    const auto pin = [&](int rank, int peer) {
      if (!traffic.are_near(rank, peer)) is_pinned_[rank] = is_pinned_[peer] = true;
    };
    for (int distance = 1; distance < largest(); distance *= 2) {
      each_pair(distance, [&](const Block&, int rank, int partner) { pin(rank, partner); });
    }
    for (int number = 0; number < steps(); ++number) {
      each_owner(number, [&](int owner, int smaller, double) { pin(owner, smaller); });
    }
  }

  int largest() const { return blocks_.front().size; }
  int steps() const { return static_cast<int>(blocks_.size()) - 1; }

  void halve(int distance) {
    each_pair(distance, [&](const Block&, int rank, int partner) {
      pack(rank, partner, share(2 * distance), distance > 1);
      send(rank, partner, share(2 * distance), distance > 1);
    });
  }
  void add_half(int distance) {
    each_pair(distance, [&](const Block& block, int rank, int) {
      const bool is_last = steps() == 0 && 2 * distance == block.size;
      traffic_.sum(rank, traffic_.sum_bytes(share(2 * distance), !is_last), 1);
    });
  }
  // Between the block with this number and the next smaller one.
  void give_to_larger(int number) {
    const bool is_sum = blocks_[number + 1].size > 1;
    each_owner(number,
               [&](int owner, int smaller, double bytes) { pack(smaller, owner, bytes, is_sum); });
    each_owner(number,
               [&](int owner, int smaller, double bytes) { send(smaller, owner, bytes, is_sum); });
  }
  void add_of_smaller(int number) {
    each_owner(number, [&](int owner, int, double bytes) {
      traffic_.sum(owner, traffic_.sum_bytes(bytes, number > 0), 1);
    });
  }
  void give_to_smaller(int number) {
    each_owner(number, [&](int owner, int smaller, double bytes) {
      traffic_.pack_result(owner, smaller, bytes, is_pinned_[owner]);
      traffic_.move(owner, smaller, bytes, is_pinned_[smaller]);
    });
  }
  void redouble(int distance) {
    each_pair(distance, [&](const Block& block, int rank, int partner) {
      const double held = share(2 * distance);
      const bool is_first = 2 * distance == block.size;
      traffic_.pack_result(rank, partner, is_first ? held : held / 2, is_pinned_[rank]);
      traffic_.move(rank, partner, held, is_pinned_[partner] && distance > 1);
    });
  }
  void unpack_own() {
    const Block& block = blocks_.front();
    for (int i = 0; i < block.size; ++i) {
      traffic_.unpack(rank_at(block, i), share(block.size), is_pinned_[rank_at(block, i)]);
    }
  }

 private:
  int rank_at(const Block& block, int index) const { return group_.members[block.begin + index]; }
  double share(int parts) const { return group_.bytes / parts; }
  template <typename Visit>
  void each_pair(int distance, Visit visit) const {
    for (const Block& block : blocks_) {
      for (int i = 0; i < block.size && distance < block.size; ++i) {
        visit(block, rank_at(block, i), rank_at(block, i ^ distance));
      }
    }
  }
  template <typename Visit>
  void each_owner(int number, Visit visit) const {
    const Block &larger = blocks_[number], &smaller = blocks_[number + 1];
    for (int i = 0; i < larger.size; ++i) {
      visit(rank_at(larger, i), rank_at(smaller, i % smaller.size), share(larger.size));
    }
  }
  void pack(int from, int to, double bytes, bool is_sum) {
    if (!is_sum && !group_.are_sums) {
      traffic_.pack(from, to, bytes);
    } else if (!is_wide_) {
      traffic_.pack_result(from, to, bytes, is_pinned_[from]);
    }
  }
  void send(int from, int to, double bytes, bool is_sum) {
    traffic_.send(from, to, traffic_.sum_bytes(bytes, is_sum || group_.are_sums));
  }

  Traffic& traffic_;
  const BlockTraffic& group_;
  std::vector<Block> blocks_;
  bool is_wide_;
  std::vector<bool> is_pinned_;  // by rank: a NIC moves some of its result
};

}  // namespace

void allreduce_by_blocks(Traffic& traffic, const BlockTraffic& group) {
  BlockRounds rounds(traffic, group);
  for (int distance = 1; distance < rounds.largest(); distance *= 2) {
    rounds.halve(distance);
    traffic.deliver();
    rounds.add_half(distance);
  }
  for (int number = rounds.steps() - 1; number >= 0; --number) {
    rounds.give_to_larger(number);
    traffic.deliver();
    rounds.add_of_smaller(number);
  }
  for (int number = 0; number < rounds.steps(); ++number) {
    rounds.give_to_smaller(number);
    traffic.deliver();
  }
  rounds.unpack_own();
  for (int distance = rounds.largest() / 2; distance > 0; distance /= 2) {
    rounds.redouble(distance);
    traffic.deliver();
  }
}

}  // namespace rdmacoll
