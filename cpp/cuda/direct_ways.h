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

// Losses of the direct way that are certain before CUDA's driver is opened.
struct CertainLosses {
  std::string warning;  // no GPU here has the direct way; "": some GPU may have it
  // The warnings of the GPUs that have lost it for this cause, as direct_ways() has them. Those of
  // other causes come with the first array on their GPU.
  std::vector<std::string> texts;
  Status status;  // an error if the setting forces a way that every GPU lacks
};

// Pure. `system` has no facts of CUDA's driver, which are taken for the most favourable ones. Which
// GPU this process will use is not known either, so a loss is certain only if each GPU has one.
CertainLosses certain_losses(GpuSystem system, const GpuDirectSetting& setting,
                             std::span<const std::string> nics);

// The way of this GPU, or null.
const DirectWay* find_way(std::span<const DirectWay> ways, const GpuFacts& gpu);

}  // namespace rdmacoll::cuda
