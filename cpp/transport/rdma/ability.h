// Whether this rank can use RDMA: devices, ports, queues, and memory that it may pin.
#pragma once

#include <span>
#include <vector>

#include "base/config.h"
#include "memory/pool.h"
#include "transport/provider.h"
#include "transport/rdma/choose_device.h"
#include "transport/rdma/error_texts.h"
#include "transport/rdma/verbs.h"

namespace rdmacoll::rdma {

struct Ability {
  TransportCard card;
  std::vector<Rail> rails;
  Verbs* verbs = nullptr;
  // Memory of callers may be registered, too. If pinned memory is limited, the pool takes it all.
  bool pins_callers_memory = false;
};

// Finds out whether this rank can use RDMA. `verbs`: null for the system's. An obstacle is no error
// here, but is named in the card.
Ability find_ability(const Config& config, MemoryPool& pool, Verbs* verbs,
                     const MemoryLimit& limit);

// Decides on the pool of all ranks, none of which names an obstacle. One rank decides how large
// segments are, so no rank may have less.
Status agree_on_pool(std::span<const Candidate> ranks, const Config& config,
                     const Describe& describe, TransportAgreement& agreement);

}  // namespace rdmacoll::rdma
