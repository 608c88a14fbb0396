// The profile of this machine, for `rdmacoll tune`, `doctor` and `plan`.
#include <algorithm>

#include "api/commands.h"
#include "base/text.h"
#include "probe/profile_file.h"

namespace rdmacoll {

std::string machine_profile_json(const Config& config, bool measure) {
  const probe::MachineFacts facts = probe::read_machine();
  const probe::FoundProfile found = measure
                                        ? probe::renew_profile(config, facts, probe::kProbeByTune)
                                        : probe::find_profile(config, facts, std::nullopt);
  std::vector<std::string> fields;
  for (const probe::ProfileField& field : probe::profile_fields()) {
    const uint64_t value = found.profile.*field.value;
    fields.push_back(cat("{\"name\": ", json_quote(field.name), ", \"unit\": ",
                         json_quote(field.unit), ", \"value\": ", value == 0 ? "null" : cat(value),
                         ", \"meaning\": ", json_quote(field.meaning), "}"));
  }
  return cat("{\"source\": ", json_quote(name_of(found.source)),
             ", \"path\": ", json_quote(found.path), ", \"note\": ", json_quote(found.note),
             ", \"took_s\": ", static_cast<double>(found.took) / kSecond, ", \"machine\": ",
             json_quote(found.profile.machine.empty() ? facts.key() : found.profile.machine),
             ", \"memory_limit\": ", facts.memory_limit,
             ", \"quota\": ", facts.quota > 0 ? cat(facts.quota) : "null",
             ", \"threads_per_core\": ", std::max<std::size_t>(1, facts.siblings.size()),
             ", \"shared_huge_pages\": ", json_quote(facts.shared_huge), ", \"fields\": [",
             join(fields, ", "), "]}");
}

probe::MachineProfile kept_profile(const Config& config) {
  return probe::find_profile(config, probe::read_machine(), std::nullopt).profile;
}

}  // namespace rdmacoll
