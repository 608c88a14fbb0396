// The RDMA devices of this machine as JSON, and the ones chosen for data.
#pragma once

#include <span>
#include <string>

#include "transport/rdma/choose_device.h"
#include "transport/rdma/verbs.h"

namespace rdmacoll::rdma {

// The RDMA devices of this machine, or the given devices. `known` is an error if the devices could
// not be read.
std::string devices_json(const DeviceRequest& request);
std::string devices_json(const Status& known, std::span<const DeviceFacts> devices,
                         const std::string& warning, const DeviceRequest& request);

}  // namespace rdmacoll::rdma
