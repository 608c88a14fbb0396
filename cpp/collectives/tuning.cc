// The cuts for each kind of links, and how they move with the rate.
#include <algorithm>
#include <cmath>

#include "collectives/choose.h"

namespace rdmacoll {

// Over TCP each message costs more, and bytes cost more in comparison with rounds.
Tuning socket_tuning() {
  return {.links = kSocketLinks,
          .doubling_bytes_network = 16 << 10,
          .doubling_bytes_long_way = 0,
          .doubling_bytes_pair = 256 << 10,
          .direct_bytes_pair = 200,
          // Measured on several hosts: above this a ring is faster, since a rank that sends to
          // several sends to none of them at the full rate.
          .direct_bytes_network = 512 << 10,
          // Measured on eight hosts: above this calls vary widely in time, and the median is slower
          // than halving and doubling.
          .direct_ranks_at_once = 6,
          .direct_bytes_at_once = 256 << 10,
          .direct_bytes_port = 0,
          .wide_ranks_port = 3,
          .wide_ranks_scattered = 5,
          .ring_ranks_network = 128,
          .ring_ranks_uneven = 128,
          .scatter_bytes_network = 2 << 20,
          .scatter_bytes_rank = 512 << 10,
          .scatter_ranks_port = 4,
          .reduce_bytes_network = 16 << 10,
          .reduce_bytes_rank = 2 << 10,
          .reduces_by_node = true,
          .gather_bytes_port = 16 << 10,
          .gather_bytes_long_way = 0,
          // Data that has arrived is still in the cache when it is added (measured, two hosts).
          .segment_bytes_rank = 128 << 10};
}

// A cut at which bytes cost as much as rounds moves with the rate of the links. It moves by powers
// of two, as cuts are powers of two.
Tuning tuning_for(const LinkModel& links) {
  Tuning tuning = links.via_nic ? Tuning{} : socket_tuning();
  tuning.links = links;
  const Link usual = usual_links(links.via_nic).network;
  const double rate = links.network.bytes_per_us / usual.bytes_per_us;
  const int fastest = links.via_nic ? 1 : 2;  // beyond, bytes cost the processor's time
  const int power = std::clamp(static_cast<int>(std::lround(std::log2(rate))), -4, fastest);
  const auto scale = [power](uint64_t& cut) { cut = power < 0 ? cut >> -power : cut << power; };
  for (uint64_t* cut :
       {&tuning.doubling_bytes_network, &tuning.doubling_bytes_uneven, &tuning.doubling_bytes_port,
        &tuning.binomial_bytes_network, &tuning.reduce_bytes_network, &tuning.reduce_bytes_rank}) {
    scale(*cut);
  }
  if (power < 0) tuning.direct_bytes_pair >>= -power;
  if (!links.via_nic) scale(tuning.direct_bytes_network);
  return tuning;
}

}  // namespace rdmacoll
