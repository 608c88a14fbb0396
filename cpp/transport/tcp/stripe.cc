#include "transport/tcp/stripe.h"

#include <algorithm>

namespace rdmacoll::tcp {

Stripe last_stripe(std::optional<uint64_t> taken, uint64_t end, uint64_t stripe_bytes) {
  if (end == 0) return {};
  const uint64_t begin = (end - 1) / stripe_bytes * stripe_bytes;
  return taken && begin <= *taken ? Stripe{} : Stripe{begin, end - begin};
}

bool is_stripe(const Stripe& stripe, uint64_t whole, uint64_t stripe_bytes) {
  return stripe.begin < whole && stripe.begin % stripe_bytes == 0 &&
         stripe.bytes == std::min(stripe_bytes, whole - stripe.begin);
}

void begin_stripe(const Progress& whole, const Stripe& stripe, Progress& part) {
  part.pieces.clear();
  uint64_t skip = stripe.begin;
  uint64_t left = stripe.bytes;
  for (const Piece& piece : whole.pieces) {
    if (left == 0) break;
    if (skip >= piece.bytes) {
      skip -= piece.bytes;
      continue;
    }
    const std::size_t length = std::min<uint64_t>(piece.bytes - skip, left);
    part.pieces.push_back({piece.data + skip, length});
    left -= length;
    skip = 0;
  }
  RC_ASSERT(left == 0);
  part.bytes = stripe.bytes;
  part.done = part.turn = 0;
  part.piece = part.within = 0;
}

}  // namespace rdmacoll::tcp
