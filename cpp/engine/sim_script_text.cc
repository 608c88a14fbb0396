// What a script says of itself.
#include "base/text.h"
#include "engine/sim_script.h"

namespace rdmacoll {

std::string SimScript::fault_text() const {
  const std::string who = victim < ranks ? cat("rank ", victim) : cat("server ", victim - ranks);
  const std::string when = cat("at ", fault_at / kMicrosecond, " us");
  const std::string where = cat("operation ", fault_operation, " of phase ", fault_phase);
  std::string what;
  switch (fault) {
    case Fault::none:
      what = "no fault";
      break;
    case Fault::kill:
      what = cat(who, " is killed ", when);
      break;
    case Fault::nap:
      what = cat(who, " pauses ", when);
      break;
    case Fault::stop:
      what = cat(who, " is stopped ", when);
      break;
    case Fault::mismatch:
      what = cat(who, " has another shape in ", where);
      break;
    case Fault::missing:
      what = cat(who, " never submits ", where);
      break;
    case Fault::leave:
      what = cat(who, " leaves before phase ", fault_phase);
      break;
    case Fault::exhaust:
      what = cat(who, " has no buffer memory");
      break;
    case Fault::cut:
      what = cat(who, " and rank ", partner, " lose their connection ", when);
      break;
    case Fault::unplug:
      what = cat(who, " is unplugged ", when);
      break;
    case Fault::dry:
      what = cat(who, " has no buffer memory left ", when);
      break;
    case Fault::refuse:
      what = cat(who, " has no memory for the result of ", where);
      break;
    case Fault::late:
      what = cat("begun again, ", late_words, " control messages of the world before arrive");
      break;
  }
  return what;
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
      shares_results ? ", results shared" : "",
      network.control_delays > 1 ? ", slow control messages" : "",
      network.pool_alone ? ", from the pool alone" : "",
      network.node_ranks > 0 ? cat(", nodes of ", network.node_ranks) : "", ", segments of ",
      segment_bytes, " bytes, pools of ", pool_bytes, ": ", fault_text());
}

}  // namespace rdmacoll
