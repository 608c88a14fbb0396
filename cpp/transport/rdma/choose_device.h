// Chooses the devices, ports and GIDs that carry the data. Pure.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "transport/rdma/facts.h"

namespace rdmacoll::rdma {

// One port that carries data. Several ports are several rails.
struct Rail {
  std::string device;
  int port = 1;
  LinkLayer link = LinkLayer::unknown;
  int gid_index = 0;
  Gid gid;
  int pkey_index = 0;
  uint16_t lid = 0;
  uint32_t mtu = 0;
  double gbit_per_s = 0;
  bool is_software = false;
  int completions_max = 0;  // entries of one completion queue
  int queue_depth_max = 0;  // requests of one queue
  std::string reason;       // why this port was chosen: "first active port; GID 1 is RoCE v2, IPv4"

  // "mlx5_0 port 1 (InfiniBand, 100 Gbit/s, LID 7)", "rxe0 port 1 (Ethernet, ..., GID 1 ...)"
  std::string text() const;
};

struct DeviceRequest {
  // TF_RDMA_DEV_NAME: "mlx5_0", "mlx5_0:2" (a port), "mlx5_0,mlx5_1" (rails); "" for automatic.
  std::string devices;
  std::string devices_by = "RDMACOLL_DEVICE";  // the setting that names the devices, for messages
  std::optional<int> gid_index = {};
  std::optional<int> port = {};  // for devices without a port number, and for all devices if none
                                 // is named
  std::optional<int> pkey_index = {};
};

// Without a request the result is one rail: the first device with an active port, hardware before
// software. If a request cannot be fulfilled, the error lists the present devices and their ports'
// states.
Status choose_rails(std::span<const DeviceFacts> present, const DeviceRequest& request,
                    std::vector<Rail>& rails);

// Returns why a port of a device cannot carry data ("is down"), or "" if it can.
std::string obstacle_of(const DeviceFacts& device, const PortFacts& port,
                        const DeviceRequest& request);

}  // namespace rdmacoll::rdma
