#include "collectives/ring_order.h"
#include "collectives/shared_stages.h"

namespace rdmacoll {

void ring_copies(Builder& program, const Shape& shape) {
  const Ring ring(shape);
  for (int round = 0; round < shape.ranks - 1; ++round) {
    program.send(ring.next(), program.output(ring.back(round)));
    program.receive(ring.previous(), program.output(ring.back(round + 1)));
  }
}

// A NIC moves what comes from another node and what goes there.
void ring_copies(Traffic& traffic, bool are_sums) {
  const int ranks = traffic.ranks();
  const double part = traffic.part();
  const std::vector<int> order = ring_order(traffic.shape());
  const auto at = [&](int place) { return order[(place + ranks) % ranks]; };
  const auto is_far = [&](int place) { return !traffic.are_near(at(place), at(place + 1)); };
  // A part that ends here has gone on as a partial sum, from the same memory.
  const bool has_gone = are_sums && traffic.sum_bytes(1, true) == 1 && ranks > 2;
  for (int place = 0; place < ranks; ++place) traffic.unpack(at(place), part, is_far(place));
  const auto pass = [&](int round) {
    for (int place = 0; place < ranks; ++place) {
      const bool came_by_nic = round > 0 && is_far(place - 1);
      traffic.pack_result(at(place), at(place + 1), part, came_by_nic);
      const bool goes_on = round < ranks - 2 || has_gone;
      traffic.move(at(place), at(place + 1), part, goes_on && is_far(place + 1));
    }
  };
  traffic.ring_rounds(ranks - 1, pass, [](int) {});
}

}  // namespace rdmacoll
