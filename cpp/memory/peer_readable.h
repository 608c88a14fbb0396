// Memory that other processes may read by process_vm_readv. The kernel refuses it for some memory
// that its own process can read: memory of devices, memory that a GPU's driver has mapped, secret
// memory.
#pragma once

#include <span>

#include "memory/piece.h"

namespace rdmacoll {

// Whether peers may read all of these pieces, which lie in host memory. Tries the first and the
// last byte of each, since a piece seldom has memory of two kinds.
bool are_peer_readable(std::span<const Piece> pieces);

}  // namespace rdmacoll
