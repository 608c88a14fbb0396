// Writes schedules. An algorithm names its steps in an order in which they could run one after the
// other. The builder finds out which steps really depend on which.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <map>
#include <span>
#include <vector>

#include "collectives/algorithms.h"
#include "collectives/bits.h"
#include "collectives/schedule.h"

namespace rdmacoll {

class Builder {
 public:
  Builder(int ranks, int rank, int parts);
  // For a sum. If the shape is prescaled, the scaled input goes to `scaled`, which is the output or
  // scratch. Scratch is for ranks whose output does not hold all parts. contribution() names the
  // scaled data.
  Builder(const Shape& shape, int parts, Space scaled = Space::output);

  Slice input(int part, int parts = 1) const { return slice(Space::input, 0, part, parts); }
  Slice output(int part, int parts = 1) const { return slice(Space::output, 0, part, parts); }
  Slice work(int part, int parts = 1) const { return slice(Space::work, 0, part, parts); }
  Slice scratch(int part, int parts = 1, bool wide = false);  // a fresh slot
  Slice contribution(int part, int parts = 1) const;
  // The place of a partial sum: the output, or sums if the output would round it.
  Slice partial(int part, int parts = 1) const;
  // A fresh slot for an addend: one rank's contribution, or the sum of several.
  Slice addend(int part, int parts, bool is_sum) {
    return scratch(part, parts, is_sum && schedule_.wide_sums);
  }

  void send(int peer, const Slice& from) { add({.verb = Verb::send, .peer = peer, .to = from}); }
  void receive(int peer, const Slice& to) { add({.verb = Verb::receive, .peer = peer, .to = to}); }
  void publish(int peer, const Slice& from) {
    add({.verb = Verb::publish, .peer = peer, .to = from});
  }
  // The peer reads the slice, and then writes its answer there.
  void lend(int peer, const Slice& slice) {
    add({.verb = Verb::publish, .lends = true, .peer = peer, .to = slice});
  }
  // Returns a view that reduce and copy may read. `like`: the slice that a receive would have
  // written.
  Slice await(int peer, const Slice& like);
  // A send or receive without bytes: it only says that the data in step.to is there, in shared
  // memory.
  void signal(const Step& step);
  void reduce(const Slice& to, std::span<const Slice> sources, bool final);
  void reduce(const Slice& to, std::initializer_list<Slice> sources, bool final) {
    reduce(to, std::span(sources.begin(), sources.size()), final);
  }
  // The sum of two neighbouring blocks of ranks, the lower one first. It goes to the output or to a
  // fresh slot.
  Slice joined(const Slice& lower, const Slice& upper, bool final) {
    const Slice sum =
        final ? output(lower.first_part, lower.parts) : addend(lower.first_part, lower.parts, true);
    reduce(sum, {lower, upper}, final);
    return sum;
  }
  void copy(const Slice& to, const Slice& from, bool final = false) {
    add({.verb = Verb::copy, .final = final, .to = to}, {&from, 1});
  }
  // Copies the sources one after the other. None of them may be a view.
  void gather(const Slice& to, std::span<const Slice> sources) {
    add({.verb = Verb::copy, .to = to}, sources);
  }
  void pack(const Slice& to, const Slice& from) { add({.verb = Verb::pack, .to = to}, {&from, 1}); }
  void unpack(const Slice& to, const Slice& from) {
    add({.verb = Verb::unpack, .to = to}, {&from, 1});
  }
  void add(Step step, std::span<const Slice> sources = {});

  Schedule finish() { return std::move(schedule_); }

 private:
  static Slice slice(Space space, int slot, int part, int parts) {
    return {space, static_cast<uint16_t>(slot), static_cast<uint16_t>(part),
            static_cast<uint16_t>(parts), space == Space::sums};
  }
  void find_hazards(Step& step, std::span<const Slice> sources);
  std::vector<uint16_t> take_turn_at(const Step& step, std::span<const Slice> sources);

  struct Ordinals {
    uint16_t out = 0, in = 0;
  };

  Schedule schedule_;
  std::vector<Slice> scaled_;  // by part; empty: not prescaled
  std::map<int, Ordinals> ordinals_;
  std::vector<Bits> ancestors_;  // by step: all steps that are done before it
  // By space, then by part or slot: the steps that read or write it. A search for hazards thus need
  // not go through all steps, of which large worlds have thousands.
  std::array<std::vector<std::vector<uint16_t>>, kSpaces> turns_;
};

// Whether both slices share memory. The input and the output of one part count as the same place.
bool overlap(const Slice& a, const Slice& b);

}  // namespace rdmacoll
