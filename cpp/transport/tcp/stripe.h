// How large transfers are cut where a peer has several streams. The first one sends them one after
// the other, each from its beginning, as ever. Each of the others, when it has room, takes the last
// stripe that is left of the first transfer of which something is left; of those that the first
// stream has not come to, the whole. So whoever is faster carries more, and none waits for another.
#pragma once

#include <cstdint>
#include <optional>

#include "transport/queues.h"
#include "transport/tcp/frame.h"

namespace rdmacoll::tcp {

// Stripes begin at multiples of this; all are as long but the last. Each is one data frame.
// (A rank's share of a segment is 128 KiB, so it is one.)
inline constexpr uint64_t kStripeBytes = 128 * 1024;
static_assert(kStripeBytes > kEagerBytes && kStripeBytes <= kFragmentBytes);

struct Stripe {
  uint64_t begin = 0;
  uint64_t bytes = 0;  // 0: there is none
};

// The last stripe of the bytes before `end`. `taken` of them belong to the first stream, which has
// come to this transfer: then something is left for it to end with. none: it has not.
Stripe last_stripe(std::optional<uint64_t> taken, uint64_t end, uint64_t stripe_bytes);

// Whether a transfer of `whole` bytes may be cut so.
bool is_stripe(const Stripe& stripe, uint64_t whole, uint64_t stripe_bytes);

// `part` is the memory of that stripe of `whole`, not begun.
void begin_stripe(const Progress& whole, const Stripe& stripe, Progress& part);

}  // namespace rdmacoll::tcp
