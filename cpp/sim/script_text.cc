// The description of a script.
#include "base/text.h"
#include "sim/script.h"

namespace rdmacoll {

namespace {

const char* text_of(GpuUse gpus) {
  switch (gpus) {
    case GpuUse::none:
      return "";
    case GpuUse::all:
      return ", all on GPUs";
    case GpuUse::one_rank:
      return ", the last rank on GPUs";
    case GpuUse::some:
      return ", half of the operations on GPUs";
  }
  return "";
}

std::string text_of(const SimDirect& direct) {
  if (!direct.ways.any()) return "";
  const char* flush = direct.flush == WriteFlush::none   ? "no flush"
                      : direct.flush == WriteFlush::call ? "flushed by calls"
                                                         : "flushed by reads";
  return cat(" that NICs", direct.ways.sends ? " read" : "",
             direct.ways.sends && direct.ways.receives ? " and" : "",
             direct.ways.receives ? " write" : "", " (", flush, ", BAR1 of ",
             direct.bar1_bytes >> 16, " pages", direct.refused > 0 ? ", refusals" : "", ")");
}

}  // namespace

std::string SimScript::fault_text() const {
  const std::string who = victim < ranks ? cat("rank ", victim) : cat("server ", victim - ranks);
  const std::string when = cat("at ", fault_at / kMicrosecond, " us");
  const std::string where = cat("operation ", fault_operation, " of phase ", fault_phase);
  switch (fault) {
    case Fault::none:
      return "no fault";
    case Fault::kill:
      return cat(who, " is killed ", when);
    case Fault::nap:
      return cat(who, " pauses ", when);
    case Fault::stop:
      return cat(who, " is stopped ", when);
    case Fault::mismatch:
      return cat(who, " has another shape in ", where);
    case Fault::missing:
      return cat(who, " never submits ", where);
    case Fault::leave:
      return cat(who, " leaves before phase ", fault_phase);
    case Fault::exhaust:
      return cat(who, " has no buffer memory");
    case Fault::cut:
      return cat(who, " and rank ", partner, " lose their connection ", when);
    case Fault::unplug:
      return cat(who, " is unplugged ", when);
    case Fault::dry:
      return cat(who, " has no buffer memory left ", when);
    case Fault::refuse:
      return cat(who, " has no memory for the result of ", where);
    case Fault::late:
      return cat("restarted, ", late_messages, " control messages of the previous world arrive");
  }
  return "";
}

std::string SimScript::text() const {
  std::string members;
  for (const std::vector<int>& set : sets) members += cat(" (", join(set, " "), ")");
  return cat(
      ranks, " ranks, ", servers > 0 ? cat(servers, " servers, ") : "",
      members.empty() ? "" : cat("sets", members, ", "),
      changes.empty() ? "" : cat(changes.size(), " changes of sets, "), phases.size(), " phases, ",
      algorithm.empty() ? "automatic" : algorithm, canonical ? ", canonical" : "",
      plan_repeats > 0 ? cat(", plans after ", plan_repeats) : "", network.views ? ", views" : "",
      network.eager_bytes > 0 ? cat(", eager up to ", network.eager_bytes) : "",
      tries_ways ? ", tries both ways" : "", looks_again ? " again" : "",
      shares_results ? ", results shared" : "", text_of(gpus),
      !records_ends          ? ""
      : gpus == GpuUse::none ? ", recorded ends"
                             : " with recorded ends",
      gpu_delay_max > 0 ? cat(", late by ", gpu_delay_max / kMillisecond, " ms") : "",
      text_of(direct),
      !ipc.is_on          ? ""
      : ipc.shares_arrays ? ", peers read arrays of GPUs"
                          : ", peers read memory of GPUs",
      network.control_delays > 1 ? ", slow control messages" : "",
      network.pool_alone ? ", from the pool alone" : "",
      network.node_ranks > 0 ? cat(", nodes of ", network.node_ranks) : "", ", segments of ",
      segment_bytes, " bytes, pools of ", pool_bytes, ": ", fault_text(),
      sleeper < 0 ? ""
                  : cat(", rank ", sleeper, " sleeps for ", sleep / kMillisecond,
                        " ms within a job after ", sleep_at / kMicrosecond, " us"));
}

}  // namespace rdmacoll
