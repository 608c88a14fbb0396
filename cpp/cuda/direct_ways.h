// The direct way of a job: one decision for each GPU and all NICs that carry the job's data.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/gpudirect.h"
#include "base/status.h"
#include "cuda/gpu_system.h"
#include "cuda/gpus.h"
#include "memory/gpu_memory_facts.h"

namespace rdmacoll::cuda {

struct DirectWay {
  std::string uuid;     // the UUID of the GPU
  std::string address;  // its PCIe address, which identifies it if `uuid` is of a part (MIG)
  GpuWays ways;
  uint64_t registrable_bytes = 0;  // the part of its BAR1; 0: not known
  std::string warning;             // a direct way is expected and lost; "": nothing is lost
  Status status;                   // an error if the setting forces a way that the machine lacks

  std::string text() const;  // "send staged, receive direct"
};

// Pure. GPU by GPU. Each transfer uses all `nics` of the job, so a direction is direct only if it
// is direct for all of them.
std::vector<DirectWay> direct_ways(GpuSystem system, const GpuDirectSetting& setting,
                                   std::span<const std::string> nics);

// The way of this GPU, or null.
const DirectWay* find_way(std::span<const DirectWay> ways, const GpuFacts& gpu);

}  // namespace rdmacoll::cuda
