// The profile of the machine during a start: the leader of each node has it, and rank 0 uses it.
#include "api/session.h"
#include "base/text.h"
#include "probe/profile_file.h"

namespace rdmacoll {

std::string Session::profile() const {
  if (!leads_node_) return "";
  const probe::MachineFacts facts = probe::read_machine(fabric_->node_cpus());
  const probe::FoundProfile found = probe::find_profile(config_, facts, probe::kProbeAtStart);
  if (!found.note.empty()) {
    const bool is_named = !config_.profile.empty();  // the user wants this file to be used
    is_named ? log_.warning(found.note) : log_.info(found.note);
  }
  switch (found.source) {
    case probe::FoundProfile::Source::off:
    case probe::FoundProfile::Source::none:
      return "";
    case probe::FoundProfile::Source::measured:
      log_.info(
          cat("measured this machine in ", found.took / kMillisecond, " ms (", facts.key(), ")."));
      break;
    case probe::FoundProfile::Source::file:
      log_.debug(cat("the profile of this machine is from ", found.path, "."));
      break;
  }
  return to_json(found.profile);
}

void Session::set_profiles(const std::vector<std::string>& profiles) {
  if (rank_ != 0 || config_.profile == "off") return;
  std::vector<probe::MachineProfile> found;
  for (const std::string& text : profiles) {
    probe::MachineProfile one;
    if (!text.empty() && probe::parse_profile(text, one)) found.push_back(one);
  }
  profile_ = probe::slowest(found);
}

}  // namespace rdmacoll
