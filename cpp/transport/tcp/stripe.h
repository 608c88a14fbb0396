// Cuts large transfers into stripes if a peer has several streams. The first stream sends transfers
// one after the other, each from its beginning. A further stream that has room takes the last
// remaining stripe of the first transfer with bytes left. If the first stream has not begun a
// transfer, the further streams may take all of it. So a faster stream carries more, and no stream
// waits for another.
//
// They help where one stream does not fill the link: bonded ports, a limit for each stream, BBR.
// They cost time where processors are the limit. RDMACOLL_TCP_STREAMS=4 shows it
// (docs/measurements/2026-11-28-what-mechanisms-are-worth.md).
#pragma once

#include <cstdint>
#include <optional>

#include "transport/queues.h"
#include "transport/tcp/frame.h"

namespace rdmacoll::tcp {

// Stripes begin at multiples of this size. All but the last have this length. Each is one data
// frame, and so is a rank's share of a segment.
inline constexpr uint64_t kStripeBytes = 128 * 1024;
static_assert(kStripeBytes > kEagerBytes && kStripeBytes <= kFragmentBytes);

struct Stripe {
  uint64_t begin = 0;
  uint64_t bytes = 0;  // 0: there is no stripe
};

// Returns the last stripe of the bytes before `end`. The first stream has taken the first `taken`
// bytes, and must keep some bytes to end with. none: the first stream has not begun.
Stripe last_stripe(std::optional<uint64_t> taken, uint64_t end, uint64_t stripe_bytes);

// Returns whether `stripe` is a valid stripe of a transfer of `whole` bytes.
bool is_stripe(const Stripe& stripe, uint64_t whole, uint64_t stripe_bytes);

// Makes `part` a transfer of that stripe of `whole`, with no byte done.
void begin_stripe(const Progress& whole, const Stripe& stripe, Progress& part);

}  // namespace rdmacoll::tcp
