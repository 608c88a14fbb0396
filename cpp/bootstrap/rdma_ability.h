// Whether ranks can use RDMA. Each rank finds out for itself, its card says so, and all decide
// alike.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "base/config.h"
#include "bootstrap/card.h"
#include "memory/pool.h"
#include "transport/rdma/choose_device.h"
#include "transport/rdma/complaints.h"
#include "transport/rdma/rdma_peer.h"
#include "transport/rdma/verbs.h"

namespace rdmacoll {

struct RdmaAbility {
  RdmaCard card;
  std::vector<rdma::Rail> rails;
  rdma::Verbs* verbs = nullptr;
  // Memory of callers may be registered, too. If pinned memory is limited, the pool takes it all.
  bool pins_callers_memory = false;
};

// Finds out whether this rank can use RDMA. `verbs`: null for the system's. An obstacle is no error
// here, but is named in the card.
RdmaAbility find_rdma(const Config& config, MemoryPool& pool, rdma::Verbs* verbs,
                      const rdma::MemoryLimit& limit);

// The options that the settings request for devices, queue pairs and paths. Unset ones keep their
// defaults.
rdma::Wish wish_of(const Config& config);
rdma::PeerOptions peer_options(const Config& config, std::size_t pool_bytes, int ranks);
// RdmaPeer does not retry for ever on soft-RoCE. If the settings request that, this adds a note.
void note_retries(const Config& config, std::span<const rdma::Rail> rails,
                  std::vector<std::string>& notes);

struct RdmaAgreement {
  bool use = false;
  std::string warning;             // for one rank to log
  uint64_t pool_bytes = 0;         // the pool that all ranks have, and with `use` can pin
  std::vector<std::string> notes;  // for one rank to log
};
// Decides for all ranks: one rank that cannot use RDMA rules it out. ConfigError if some rank has
// requested it. `describe` names a rank. The caller shrinks the pool to `pool_bytes`. One rank
// decides how large segments are, so no rank may have less.
Status agree_on_rdma(std::span<const Card> cards, const Config& config,
                     const std::function<std::string(int)>& describe, RdmaAgreement& agreement);

}  // namespace rdmacoll
