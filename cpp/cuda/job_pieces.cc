#include "cuda/job_pieces.h"

namespace rdmacoll::cuda {

Gpu only_gpu(const ComputeJob& job) {
  Gpu gpu = kHost;
  bool is_only = true;
  const auto look = [&](std::span<const Piece> pieces) {
    for (const Piece& piece : pieces) {
      is_only = is_only && (piece.gpu == kHost || gpu == kHost || piece.gpu == gpu);
      if (piece.gpu != kHost) gpu = piece.gpu;
    }
  };
  look(job.to);
  for (const Operand& source : job.sources) look(source.pieces);
  return is_only ? gpu : kHost;
}

Gpu main_gpu(const ComputeJob& job) {
  for (const Piece& piece : job.to) {
    if (piece.gpu != kHost) return piece.gpu;
  }
  for (const Operand& source : job.sources) {
    for (const Piece& piece : source.pieces) {
      if (piece.gpu != kHost) return piece.gpu;
    }
  }
  return kHost;
}

bool are_on(Gpu gpu, std::span<const Piece> pieces) {
  return std::all_of(pieces.begin(), pieces.end(),
                     [gpu](const Piece& piece) { return piece.gpu == gpu; });
}

void cut_out(std::span<const Piece> pieces, std::size_t begin, std::size_t bytes,
             std::vector<Piece>& cut) {
  cut.clear();
  Side side(pieces);
  side.skip(begin);
  while (bytes > 0) {
    const std::size_t run = std::min(side.run(), bytes);
    cut.push_back({side.data(), run, side.gpu()});
    side.skip(run);
    bytes -= run;
  }
}

}  // namespace rdmacoll::cuda
