#include "transport/rdma/settings.h"

#include <algorithm>

#include "base/text.h"

namespace rdmacoll::rdma {

Status check_settings(Config& config, const GivenSettings& given) {
  if (given.is_named && !config.rdma_enabled) {
    return {Code::invalid,
            "RDMACOLL_TRANSPORT names rdma, but RDMACOLL_RDMA (TF_RDMA_ENABLED) is false: change "
            "one of them."};
  }
  const std::string device = given.text("RDMACOLL_DEVICE");
  if (!device.empty()) config.rdma_device_by = device.substr(0, device.find('='));
  // The list of transports decides. If it leaves out RDMA, a device that scripts name is no request
  // for RDMA.
  if (!config.rdma_enabled || !given.is_allowed) return {};
  for (const std::string_view name : {"RDMACOLL_RDMA", "RDMACOLL_DEVICE", "RDMACOLL_TRANSPORT"}) {
    const std::string text = given.text(name);
    if (text.empty() || (name == "RDMACOLL_TRANSPORT" && !given.is_named)) continue;
    config.rdma_request += cat(config.rdma_request.empty() ? "" : " ", text);
  }
  return {};
}

DeviceRequest device_request(const Config& config) {
  return {.devices = config.rdma_device,
          .devices_by = config.rdma_device_by,
          .gid_index = config.rdma_gid_index,
          .port = config.rdma_port,
          .pkey_index = config.rdma_pkey_index};
}

PeerOptions peer_options(const Config& config, std::size_t pool_bytes, int ranks) {
  const uint64_t messages =
      config.accumulation_bytes.value_or(accumulation_that_fits(pool_bytes, ranks));
  PeerOptions options{.accumulation_bytes = static_cast<uint32_t>(messages),
                      .finds_cut = !config.accumulation_bytes,
                      .chunk_bytes = static_cast<uint32_t>(config.chunk_bytes),
                      .peer_timeout = from_seconds(config.peer_timeout_s)};
  options.queue_depth = config.rdma_queue_depth.value_or(options.queue_depth);
  PathSettings& path = options.path;
  path.mtu = config.rdma_mtu.value_or(path.mtu);
  path.timeout = config.rdma_timeout.value_or(path.timeout);
  path.retries = config.rdma_retries.value_or(path.retries);
  path.service_level = config.rdma_service_level.value_or(path.service_level);
  path.traffic_class = config.rdma_traffic_class.value_or(path.traffic_class);
  return options;
}

void note_retries(const Config& config, std::span<const Rail> rails,
                  std::vector<std::string>& notes) {
  const auto soft =
      std::find_if(rails.begin(), rails.end(), [](const Rail& rail) { return rail.is_software; });
  if (config.rdma_retries != kRetriesForEver || soft == rails.end()) return;
  notes.push_back(cat("RDMA_RETRY_CNT=7 means for ever on ", soft->device,
                      ", which is soft-RoCE, so that a lost peer would never be noticed: it is "
                      "taken as 6; set RDMA_RETRY_CNT=6 to be rid of this line."));
}

}  // namespace rdmacoll::rdma
