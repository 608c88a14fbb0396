// Commands that need no world: their JSON keys, without command, version and ok.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "base/status.h"
#include "transport/rdma/choose_device.h"
#include "transport/rdma/verbs.h"

namespace rdmacoll {

std::string verify_schedules_json(int ranks_first, int ranks_last, bool& ok);
std::string sim_faults_json(uint64_t seed_begin, uint64_t seed_end, bool verbose, bool& ok);

// Of this machine, and of a machine that is known (or, as `known` says, not known).
std::string devices_json(const rdma::Wish& wish);
std::string devices_json(const Status& known, std::span<const rdma::DeviceFacts> devices,
                         const std::string& warning, const rdma::Wish& wish);

}  // namespace rdmacoll
