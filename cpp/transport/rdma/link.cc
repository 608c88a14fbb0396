#include "transport/rdma/link.h"

#include "base/text.h"

namespace rdmacoll::rdma {

bool hold_gpu_memory(const RankState& rank_state, std::span<const Piece> pieces) {
  bool has_gpu = false;
  for (const Piece& piece : pieces) {
    if (piece.gpu == kHost || piece.bytes == 0) continue;
    RC_ASSERT(rank_state.gpus != nullptr, cat("memory of GPU ", piece.gpu, " is not pinned"));
    rank_state.gpus->registrations.hold_again(piece);
    has_gpu = true;
  }
  return has_gpu;
}

void release_gpu_memory(const RankState& rank_state, std::span<const Piece> pieces) {
  for (const Piece& piece : pieces) {
    if (piece.gpu != kHost && piece.bytes > 0) rank_state.gpus->registrations.release(piece);
  }
}

}  // namespace rdmacoll::rdma
