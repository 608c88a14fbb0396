#include "transport/rdma/link.h"

#include "base/text.h"

namespace rdmacoll::rdma {

uint64_t hold_gpu_memory(const RankState& rank_state, std::span<const Piece> pieces) {
  uint64_t bytes = 0;
  for (const Piece& piece : pieces) {
    if (piece.gpu == kHost || piece.bytes == 0) continue;
    RC_ASSERT(rank_state.gpus != nullptr, cat("memory of GPU ", piece.gpu, " is not pinned"));
    rank_state.gpus->registrations.hold_again(piece);
    bytes += piece.bytes;
  }
  return bytes;
}

void release_gpu_memory(const RankState& rank_state, std::span<const Piece> pieces) {
  for (const Piece& piece : pieces) {
    if (piece.gpu != kHost && piece.bytes > 0) rank_state.gpus->registrations.release(piece);
  }
}

}  // namespace rdmacoll::rdma
