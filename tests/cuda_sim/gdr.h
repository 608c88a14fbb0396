// GDRCopy (libgdrapi) on the emulated GPUs. A mapping has no access, so only the library's copies
// write through it. As on a card, written bytes are on their way until work is submitted, a stream
// is waited for, or they are read back. Queued work does not see them before.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "cuda_sim/memory.h"

namespace rdmacoll::cuda_sim {

// Pages of a GPU that are pinned in its BAR1.
struct GdrPin {
  Address begin = 0;
  std::size_t bytes = 0;
  int place = 0;                 // in Machine::gpus
  std::vector<uint64_t> ids;     // allocations that were there when it was made
  std::byte* mapping = nullptr;  // addresses of the host
  std::size_t mapped = 0;        // bytes of them

  bool has(uint64_t id) const;
};

struct PostedWrite {
  Address address = 0;
  std::vector<std::byte> bytes;
};

struct Gdr {
  int connections = 0;
  unsigned long next_pin = 1;
  std::map<unsigned long, GdrPin> pins;
  std::vector<PostedWrite> posted;

  // All posted writes arrive.
  void land(Memory& memory);
};

}  // namespace rdmacoll::cuda_sim
