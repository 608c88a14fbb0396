// How a large transfer is cut where a peer has several streams: the first one sends it from its
// beginning, as ever, and each of the others takes the last stripe that is left when it has room.
// So whoever is faster carries more, and one stream alone never waits for another.
#pragma once

#include <cstdint>

#include "transport/queues.h"
#include "transport/tcp/frame.h"

namespace rdmacoll::tcp {

// Stripes begin at multiples of this; all are as long but the last. Each is one data frame.
inline constexpr uint64_t kStripeBytes = kFragmentBytes;

struct Stripe {
  uint64_t begin = 0;
  uint64_t bytes = 0;  // 0: there is none
};

// The last stripe of the bytes before `end`, where the first stream has not come to it: it has, or
// has begun, `taken` bytes, and something is left for it to end with.
Stripe last_stripe(uint64_t taken, uint64_t end, uint64_t stripe_bytes);

// Whether a transfer of `whole` bytes may be cut so.
bool is_stripe(const Stripe& stripe, uint64_t whole, uint64_t stripe_bytes);

// `part` is the memory of that stripe of `whole`, not begun.
void begin_stripe(const Progress& whole, const Stripe& stripe, Progress& part);

}  // namespace rdmacoll::tcp
