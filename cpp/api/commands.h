// Commands that need no world: their JSON keys, without command, version and ok.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "base/config.h"
#include "base/link_model.h"
#include "base/status.h"
#include "operation/operation.h"
#include "sim/scale.h"
#include "transport/rdma/choose_device.h"
#include "transport/rdma/verbs.h"

namespace rdmacoll {

std::string verify_schedules_json(int ranks_first, int ranks_last, bool& ok);
Status sim_scale_json(const ScaleQuestion& question, std::string& json);
std::string sim_faults_json(uint64_t seed_begin, uint64_t seed_end, bool verbose, bool& ok);

// What would run, and why. The bytes of an allgather or a gather are those of all ranks together,
// of a scatter the root's, of the others those of each rank. The root is rank 0.
struct PlanQuestion {
  static constexpr int kRanksMax = 256;

  Kind kind = Kind::allreduce;
  int ranks = 1;
  int nodes = 1;  // of consecutive ranks, as even as can be
  uint64_t bytes = 0;
  Dtype dtype = Dtype::float32;  // of a sum
  int rank = 0;                  // whose schedule is shown
  std::string algorithm;         // of which; "": the one that is chosen
  LinkModel links;
  bool has_rate = false;  // it is the question's, not the settings'
  // Parameter servers beside the ranks, which sum: on a node of their own each, or all in the one
  // node that there is.
  int servers = 0;
};
Status plan_json(const PlanQuestion& question, const Config& config, std::string& json);

// Of this machine, and of a machine that is known (or, as `known` says, not known).
std::string devices_json(const rdma::Wish& wish);
std::string devices_json(const Status& known, std::span<const rdma::DeviceFacts> devices,
                         const std::string& warning, const rdma::Wish& wish);

}  // namespace rdmacoll
