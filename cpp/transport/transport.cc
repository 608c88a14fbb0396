#include "transport/transport.h"

#include "base/text.h"

namespace rdmacoll {

PeerPool Transport::pool_of(int peer) const {
  RC_ASSERT(false, cat("no shared pool with peer ", peer));
  return {};
}

Status Transport::publish(const Transfer& transfer) {
  RC_ASSERT(false, cat("no views with peer ", transfer.peer));
  return {};
}

Status Transport::await(int peer, Lane, uint64_t, uint64_t) {
  RC_ASSERT(false, cat("no views with peer ", peer));
  return {};
}

Status Transport::release(int peer, Lane, uint64_t) {
  RC_ASSERT(false, cat("no views with peer ", peer));
  return {};
}

}  // namespace rdmacoll
