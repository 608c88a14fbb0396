// Commands that need no world. They return their JSON keys, except command, version and ok.
#pragma once

#include <cstdint>
#include <string>

#include "base/config.h"
#include "base/link_model.h"
#include "base/status.h"
#include "operation/operation.h"
#include "probe/machine_profile.h"
#include "sim/scale.h"

namespace rdmacoll {

std::string verify_schedules_json(int ranks_first, int ranks_last, bool& ok);
Status sim_scale_json(const ScaleQuery& query, std::string& json);
std::string sim_faults_json(uint64_t seed_begin, uint64_t seed_end, bool verbose, bool& ok);

// A query: which algorithm would run, and why. `bytes`: for an allgather or gather the total of all
// ranks, for a scatter the root's, otherwise those of each rank. The root is rank 0.
struct PlanQuery {
  static constexpr int kRanksMax = 256;

  Kind kind = Kind::allreduce;
  int ranks = 1;
  int nodes = 1;  // nodes of consecutive ranks, as even as possible
  uint64_t bytes = 0;
  Dtype dtype = Dtype::float32;  // the dtype of a sum
  int rank = 0;                  // the rank whose schedule is shown
  std::string algorithm;         // the algorithm of that schedule; "": the chosen one
  LinkModel links;
  bool has_rate = false;  // the query gives the link rate, not the settings
  // Parameter servers, which make the sums, in addition to the ranks. Each has its own node, or all
  // share the node if there is only one.
  int servers = 0;
};
// As tools.machine_profile() in rdmacoll_c.h.
std::string machine_profile_json(const Config& config, bool measure);
// The links with the costs and the cores of this machine, if its profile is kept and not off.
LinkModel with_kept_profile(LinkModel links, const Config& config);
Status plan_json(const PlanQuery& query, const Config& config, std::string& json);

}  // namespace rdmacoll
