#include "engine/result_addresses.h"

#include <algorithm>

#include "base/text.h"
#include "collectives/algorithms.h"

namespace rdmacoll {

// Requires that one rank or server writes each part of the result, once. Algorithms with one writer
// do so, unless inputs are scaled first, into the output. The first member must be connected to all
// ranks. Without servers these algorithms connect all ranks. With servers it is connected to its
// children in the control tree, so all ranks must be its children.
bool ResultAddresses::shares_results(const CompleteDecision& decision) const {
  const int ranks = parts_.world.size();
  const AlgorithmRow* row = row_of(decision.movement.algorithm);
  if (row == nullptr || !row->has_one_writer) return false;
  const bool are_connected = !row->by_servers || ranks <= kTreeRadix + 1;
  if (!are_connected || decision.operations.size() != 1) return false;
  const Request& request = decision.operations.front()->request;
  return request.shares_results && request.prescale == 1.0 && ranks > 1 && parts_.is_one_node;
}

bool ResultAddresses::shares_pool(JobRank peer) const {
  return parts_.transport.is_connected(peer.value()) &&
         parts_.transport.reach(peer.value()).shared_pools;
}

bool ResultAddresses::find(const CompleteDecision& decision, SharedResult& result) {
  if (!shares_results(decision)) return true;
  const ResultOffsets offsets(decision.operations.front()->request.result_bytes());
  if (!is_root()) return find_announced(decision, offsets, result);
  offer(decision, offsets.block_bytes(), result);
  return parts_.now.goes_on();
}

bool ResultAddresses::find_announced(const CompleteDecision& decision, const ResultOffsets& offsets,
                                     SharedResult& result) {
  const auto announced = announced_.find(decision.sequence);
  if (parts_.now.lost.contains(root())) {
    if (announced != announced_.end()) parts_.host.misses(root());
    return false;
  }
  // The loss of a connection may be reported later than it is seen here.
  if (!parts_.transport.is_connected(root().value())) return false;
  if (!shares_pool(root())) return true;
  if (announced == announced_.end()) return false;
  const uint64_t offset = announced->second;
  announced_.erase(announced);
  if (offset == ResultAddressMessage::kNotShared) return true;
  const PeerPool pool = parts_.transport.pool_of(root().value());
  if (offset > pool.bytes || offsets.block_bytes() > pool.bytes - offset) {
    parts_.host.broken_protocol(
        root(), cat("results at ", offset, " of a pool of ", bytes_text(pool.bytes)));
    return false;
  }
  hold(decision, pool, offset, offsets.block_bytes(), result);
  return parts_.now.goes_on();
}

void ResultAddresses::hold(const CompleteDecision& decision, const PeerPool& pool, uint64_t offset,
                           std::size_t block_bytes, SharedResult& result) {
  result.block = {pool.base + offset, pool.view + offset, block_bytes};
  // A server writes into memory that the workers hold until they know that it is written.
  if (parts_.world.is_server()) return;
  const Status held = hold_results(result.block, pool.mapping, result.hold);
  if (!held.ok()) {
    parts_.host.fail_this_rank(
        {Code::failed, cat("no memory of ", bytes_text(block_bytes), " for the result of ",
                           decision.operations.front()->label(), ": ", held.message(), ".")});
  }
}

void ResultAddresses::offer(const CompleteDecision& decision, std::size_t block_bytes,
                            SharedResult& result) {
  const SetMembers& members = parts_.members;
  const bool may_share = std::all_of(members.begin() + 1, members.end(),
                                     [this](JobRank peer) { return shares_pool(peer); });
  const auto holders = static_cast<uint32_t>(parts_.world.size());
  std::byte* const block = may_share ? parts_.results.lend(block_bytes, holders) : nullptr;
  ResultAddressMessage message{decision.sequence};
  if (block != nullptr) {
    const MemoryPool& pool = parts_.pool;
    message.offset = static_cast<uint64_t>(block - pool.base());
    const PeerPool mine{pool.base(), pool.view(), pool.size(), pool.mapping()};
    hold(decision, mine, message.offset, block_bytes, result);
  }
  for (auto peer = members.begin() + 1; peer != members.end(); ++peer) {
    if (shares_pool(*peer)) parts_.host.post(*peer, parts_.set, message);
  }
}

bool ResultAddresses::take(JobRank peer, const ResultAddressMessage& message) {
  return peer == root() && !is_root() &&
         announced_.emplace(message.sequence, message.offset).second;
}

}  // namespace rdmacoll
