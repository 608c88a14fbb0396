// Results that all ranks of a node share. The first member chooses their place in its pool when it
// begins the sum, and sends it to the other ranks and the servers. These wait for the message. All
// ranks know which sums have shared results. The message may also say that there is no room. A rank
// that cannot map the first member's pool uses its own memory, and both ranks know this.
#include <algorithm>

#include "base/text.h"
#include "engine/process_set.h"

namespace rdmacoll {

// Requires that one rank or server writes each part of the result, once. These algorithms do so,
// unless inputs are scaled first, into the output. The first member must be connected to all ranks.
// With `direct` all ranks are connected. With servers it is connected to its children in the
// control tree, so all ranks must be its children.
bool ProcessSet::shares_results(const Decided& decided) const {
  const bool is_by_servers =
      decided.algorithm == Algorithm::parameter_server && world_.size() <= kTreeRadix + 1;
  const bool has_one_writer = decided.algorithm == Algorithm::direct || is_by_servers;
  if (!has_one_writer || decided.operations.size() != 1) return false;
  const Request& request = decided.operations.front()->request;
  return request.shares_results && request.prescale == 1.0 && world_.size() > 1 && is_one_node_;
}

// Requires connected peers. Returns false while the first member's message is missing.
bool ProcessSet::find_place(Decided& decided) {
  if (decided.place || !shares_results(decided)) return true;
  const ResultOffsets offsets(decided.operations.front()->request.result_bytes());
  if (is_root()) {
    offer_place(decided, offsets.block_bytes());
    return now_.goes_on();
  }
  const auto told = places_.find(decided.sequence);
  if (now_.lost.contains(root())) {
    if (told != places_.end()) host_.fail(root(), job_.failed(root(), kLeftTooEarly));
    return false;
  }
  if (!transport_.reach(root()).shared_pools) {
    decided.place.emplace();
    return true;
  }
  if (told == places_.end()) return false;
  const uint64_t offset = told->second;
  places_.erase(told);
  decided.place.emplace();
  if (offset == PlaceMessage::kNoPlace) return true;
  const PeerPool pool = transport_.pool_of(root());
  if (offset > pool.bytes || offsets.block_bytes() > pool.bytes - offset) {
    host_.broken_protocol(
        root(), cat("a place for results at ", offset, " of a pool of ", bytes_text(pool.bytes)));
    return false;
  }
  take_place(decided, pool, offset, offsets.block_bytes());
  return now_.goes_on();
}

void ProcessSet::take_place(Decided& decided, const PeerPool& pool, uint64_t offset,
                            std::size_t block_bytes) {
  Decided::Place& place = *decided.place;
  place.block = {pool.base + offset, pool.view + offset, block_bytes};
  // A server writes into memory that the workers hold until they know that it is written.
  if (is_server()) return;
  const Status held = hold_results(place.block, pool.mapping, place.hold);
  if (!held.ok()) {
    host_.fail_myself(
        {Code::failed, cat("no memory of ", bytes_text(block_bytes), " for the result of ",
                           decided.operations.front()->label(), ": ", held.message(), ".")});
  }
}

void ProcessSet::offer_place(Decided& decided, std::size_t block_bytes) {
  decided.place.emplace();
  const bool may_share = std::all_of(ranks_.begin() + 1, ranks_.end(), [this](int peer) {
    return transport_.reach(peer).shared_pools;
  });
  std::byte* const block =
      may_share ? results_.lend(block_bytes, static_cast<uint32_t>(world_.size())) : nullptr;
  PlaceMessage message{decided.sequence};
  if (block != nullptr) {
    message.offset = static_cast<uint64_t>(block - pool_.base());
    const PeerPool mine{pool_.base(), pool_.view(), pool_.size(), pool_.mapping()};
    take_place(decided, mine, message.offset, block_bytes);
  }
  for (auto peer = ranks_.begin() + 1; peer != ranks_.end(); ++peer) {
    if (transport_.reach(*peer).shared_pools) post(*peer, message);
  }
}

void ProcessSet::handle(int peer, PlaceMessage& message) {
  const bool is_expected =
      peer == root() && !is_root() && places_.emplace(message.sequence, message.offset).second;
  if (!is_expected) host_.broken_protocol(peer, "a place for results that nobody has asked for");
}

}  // namespace rdmacoll
