// Whether ranks can use RDMA: each finds out for itself, its card says so, and all decide alike.
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
  // Memory of callers may be registered, too. Where pinned memory is limited the pool has it all.
  bool pins_callers_memory = false;
};

// `verbs`: null for the system's. What is missing is no error here, but said in the card.
RdmaAbility find_rdma(const Config& config, MemoryPool& pool, rdma::Verbs* verbs,
                      const rdma::MemoryLimit& limit);

// What the settings say of devices, queue pairs and paths; unset, the defaults of their types.
rdma::Wish wish_of(const Config& config);
rdma::PeerOptions peer_options(const Config& config, std::size_t pool_bytes, int ranks);
// RdmaPeer does not retry for ever on soft-RoCE; this says so where it was asked to.
void note_retries(const Config& config, std::span<const rdma::Rail> rails,
                  std::vector<std::string>& notes);

struct RdmaAgreement {
  bool use = false;
  std::string warning;             // for one rank to say
  uint64_t pool_bytes = 0;         // what all have, and with `use` can pin
  std::vector<std::string> notes;  // for one rank to say
};
// One rank that cannot decides for all. ConfigError when somebody has asked for it. `describe`
// names a rank. The pool is shrunk to `pool_bytes` by the caller: one rank decides how
// large segments are, so none may have less than it.
Status agree_on_rdma(std::span<const Card> cards, const Config& config,
                     const std::function<std::string(int)>& describe, RdmaAgreement& agreement);

}  // namespace rdmacoll
