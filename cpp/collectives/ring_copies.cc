#include "collectives/halves.h"
#include "collectives/ring_order.h"

namespace rdmacoll {

void ring_copies(Builder& program, const Shape& shape) {
  const Ring ring(shape);
  for (int round = 0; round < shape.ranks - 1; ++round) {
    program.send(ring.next(), program.output(ring.back(round)));
    program.receive(ring.previous(), program.output(ring.back(round + 1)));
  }
}

// A NIC moves what comes from another node and what goes there.
void ring_copies(Traffic& traffic) {
  const int ranks = traffic.ranks();
  const double part = traffic.part();
  const std::vector<int> order = ring_order(traffic.shape());
  const auto at = [&](int place) { return order[(place + ranks) % ranks]; };
  const auto is_far = [&](int place) { return !traffic.are_near(at(place), at(place + 1)); };
  for (int place = 0; place < ranks; ++place) traffic.unpack(at(place), part, is_far(place));
  traffic.repeat(ranks - 1, [&](int round) {
    for (int place = 0; place < ranks; ++place) {
      const bool came_by_nic = round > 0 && is_far(place - 1);
      traffic.pack_result(at(place), at(place + 1), part, came_by_nic);
      const bool goes_on = round < ranks - 2;
      traffic.move(at(place), at(place + 1), part, goes_on && is_far(place + 1));
    }
    traffic.deliver();
  });
}

}  // namespace rdmacoll
