// The settings of RDMA, and what they request of devices, queue pairs and paths.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "base/config.h"
#include "transport/provider.h"
#include "transport/rdma/choose_device.h"
#include "transport/rdma/rdma_peer.h"

namespace rdmacoll::rdma {

// Finds out which settings request RDMA, and refuses those that exclude each other.
Status check_settings(Config& config, const GivenSettings& given);

// Unset options keep their defaults.
DeviceRequest device_request(const Config& config);
PeerOptions peer_options(const Config& config, std::size_t pool_bytes, int ranks);

// RdmaPeer does not retry for ever on soft-RoCE. If the settings request that, this adds a note.
void note_retries(const Config& config, std::span<const Rail> rails,
                  std::vector<std::string>& notes);

}  // namespace rdmacoll::rdma
