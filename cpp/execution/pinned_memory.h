// Memory of GPUs that NICs may access until this object ends.
#pragma once

#include <span>
#include <utility>
#include <vector>

#include "memory/piece.h"
#include "transport/transport.h"

namespace rdmacoll {

class PinnedMemory {
 public:
  PinnedMemory() = default;
  PinnedMemory(PinnedMemory&& other) noexcept { *this = std::move(other); }
  PinnedMemory& operator=(PinnedMemory&& other) noexcept {
    std::swap(transport_, other.transport_);
    std::swap(pieces_, other.pieces_);
    other.release();
    return *this;
  }
  ~PinnedMemory() { release(); }

  // Pins all pieces. Returns false, and pins none of them, if the NICs cannot access one.
  bool add(Transport& transport, std::span<const Piece> pieces) {
    transport_ = &transport;
    for (std::size_t i = 0; i < pieces.size(); ++i) {
      if (transport.pin(pieces[i])) {
        pieces_.push_back(pieces[i]);
        continue;
      }
      for (; i > 0; --i, pieces_.pop_back()) transport.unpin(pieces_.back());
      return false;
    }
    return true;
  }
  void release() {
    for (const Piece& piece : std::exchange(pieces_, {})) transport_->unpin(piece);
  }

 private:
  Transport* transport_ = nullptr;
  std::vector<Piece> pieces_;
};

}  // namespace rdmacoll
