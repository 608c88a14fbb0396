#include "collectives/ring_order.h"
#include "collectives/shared_stages.h"

namespace rdmacoll {

void ring_sums(Builder& program, const Shape& shape, Space partial) {
  const int ranks = shape.ranks;
  if (ranks == 1) return program.copy(program.output(0), program.contribution(0), true);
  const Ring ring(shape);
  Slice passed = program.contribution(ring.back(1));
  for (int round = 0; round < ranks - 1; ++round) {
    program.send(ring.next(), passed);
    const int in = ring.back(round + 2);
    const Slice received = program.addend(in, 1, round > 0);
    program.receive(ring.previous(), received);
    const bool last = round == ranks - 2;  // then `in` is this rank's own part
    passed = last                       ? program.output(in)
             : partial == Space::output ? program.partial(in)
                                        : program.addend(in, 1, true);
    program.reduce(passed, {received, program.contribution(in)}, last);
  }
}

void ring_sums(Traffic& traffic, Space partial) {
  const int ranks = traffic.ranks();
  const double part = traffic.part();
  const std::vector<int> order = ring_order(traffic.shape());
  const auto at = [&](int place) { return order[(place + ranks) % ranks]; };
  const auto is_pinned = [&](int place) {
    return !traffic.are_near(at(place - 1), at(place)) ||
           !traffic.are_near(at(place), at(place + 1));
  };
  const bool is_in_output = partial == Space::output && traffic.sum_bytes(1, true) == 1;
  const auto send = [&](int round) {
    const double bytes = traffic.sum_bytes(part, round > 0);
    for (int place = 0; place < ranks; ++place) {
      if (round == 0) traffic.pack(at(place), at(place + 1), part);
      if (round > 0 && is_in_output) {
        traffic.pack_result(at(place), at(place + 1), part, is_pinned(place));
      }
      traffic.send(at(place), at(place + 1), bytes);
    }
  };
  const auto sum = [&](int round) {
    const bool is_last = round == ranks - 2;
    const double bytes = traffic.sum_bytes(part, !is_last);
    for (int rank = 0; rank < ranks; ++rank) traffic.sum(rank, bytes, 1);
  };
  traffic.ring_rounds(ranks - 1, send, sum);
}

}  // namespace rdmacoll
