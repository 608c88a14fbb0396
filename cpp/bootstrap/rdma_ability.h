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
#include "transport/rdma/verbs.h"

namespace rdmacoll {

struct RdmaAbility {
  RdmaCard card;
  std::vector<rdma::Rail> rails;
  rdma::Verbs* verbs = nullptr;
};

// `verbs`: null for the system's. What is missing is no error here, but said in the card.
RdmaAbility find_rdma(const Config& config, MemoryPool& pool, rdma::Verbs* verbs);

struct RdmaAgreement {
  bool use = false;
  std::string warning;  // for one rank to say
};
// One rank that cannot decides for all. ConfigError when somebody has asked for it. `describe`
// names a rank.
Status agree_on_rdma(std::span<const Card> cards, const std::function<std::string(int)>& describe,
                     RdmaAgreement& agreement);

}  // namespace rdmacoll
