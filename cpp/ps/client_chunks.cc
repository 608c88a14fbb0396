// Cuts a worker's transfers into chunks, and sends a chunk to its server.
#include <algorithm>

#include "ps/client.h"

namespace rdmacoll::ps {

// A server's shares are contiguous on the server, but not in the variable's memory.
void Client::cut(const Tensor& tensor, int server, std::size_t begun, Pending& pending) const {
  // Sent data is never written.
  auto* const sent =
      tensor.gradient == nullptr ? tensor.data : const_cast<std::byte*>(tensor.gradient);
  std::span<const Share> shares = sharding_.shares(tensor.variable);
  for (std::size_t at = begun; at < pending.chunks.size(); ++at) {
    const Chunk& chunk = pending.chunks[at];
    const auto is_over = [&](const Share& share) {
      return share.server != server || share.place + share.elements <= chunk.first;
    };
    while (!shares.empty() && is_over(shares.front())) shares = shares.subspan(1);
    auto& there = pending.pieces_there.emplace_back();
    auto& back = pending.pieces_back.emplace_back();
    const std::size_t bytes = size_of(specs_[tensor.variable].dtype);
    for (const Share& share : shares) {
      if (share.server != server) continue;
      const uint64_t first = std::max(share.place, chunk.first);
      const uint64_t end = std::min(share.place + share.elements, chunk.first + chunk.elements);
      if (first >= end) break;
      const uint64_t place = (share.first + first - share.place) * bytes;
      if (chunk.bytes_there > 0) there.push_back({sent + place, (end - first) * bytes});
      if (chunk.bytes_back > 0) back.push_back({tensor.data + place, (end - first) * bytes});
    }
  }
}

// Sends the next chunk.
Status Client::give(Server& server, const Pending& pending) {
  const std::size_t number = pending.posted_there;
  const uint64_t sequence = pending.sequence_there + number;
  if (goes_as_view(transport_.reach(server.rank), pending.chunks[number])) {
    return show(server, pending, sequence);
  }
  // A server without an earlier request posts these receives when it reads the request.
  const bool is_first = &pending == &server.pending.front() && number < kWindow;
  return transport_.post_send({.peer = server.rank,
                               .lane = kLaneThere,
                               .sequence = sequence,
                               .pieces = pending.pieces_there[number],
                               .cookie = cookie(server, pending, kPacked),
                               .is_announced = is_first});
}

// Packing is a fast copy, and overlaps with the server's work on the previous chunk. Otherwise the
// server would copy foreign memory, which also costs the kernel a walk through its pages.
Status Client::show(Server& server, const Pending& pending, uint64_t sequence) {
  const std::size_t bytes = pending.chunks[pending.posted_there].bytes_there;
  auto free = server.packed.end();  // the largest free one
  for (auto place = server.packed.begin(); place != server.packed.end(); ++place) {
    if (place->is_shown) continue;
    if (free == server.packed.end() || place->bytes > free->bytes) free = place;
  }
  if (free == server.packed.end()) return Status::busy();
  if (!has_room(server, *free, bytes)) {
    // One place is enough to continue, once it is free.
    const bool has_one = std::any_of(server.packed.begin(), server.packed.end(),
                                     [](const Packed& packed) { return packed.is_shown; });
    return has_one ? Status::busy() : pool_exhausted(pool_, bytes, " to pack into");
  }
  store_policy_.gather(pending.pieces_there[pending.posted_there], bytes, free->data);
  const Piece piece{free->data, bytes};
  const auto index = static_cast<std::size_t>(free - server.packed.begin());
  const Status shown = transport_.publish(
      {server.rank, kLaneThere, sequence, {&piece, 1}, cookie(server, pending, index)});
  free->is_shown = shown.ok();
  return shown;
}

// Frees unused places if the pool is exhausted.
bool Client::has_room(Server& server, Packed& place, std::size_t bytes) {
  if (place.bytes >= bytes) return true;
  const auto drop = [this](Packed& packed) {
    pool_.free(packed.data);
    packed = {};
  };
  const auto take = [this, &place](std::size_t size) {
    place.data = pool_.allocate(size);
    place.bytes = place.data == nullptr ? 0 : size;
    return place.data != nullptr;
  };
  drop(place);
  if (take(std::max(bytes, packed_bytes_))) return true;
  for (Packed& packed : server.packed) {
    if (!packed.is_shown) drop(packed);
  }
  return take(bytes);
}

// `packed`: the place of the packed chunk, or kPacked for none.
uint64_t Client::cookie(const Server& server, const Pending& pending, std::size_t packed) const {
  const auto index = static_cast<std::size_t>(&server - servers_.data());
  return (pending.request.id * servers_.size() + index) * (kPacked + 1) + packed;
}

}  // namespace rdmacoll::ps
