// The profile of this machine from its file, which keeps it from one start to the next.
#pragma once

#include <optional>
#include <string>

#include "base/config.h"
#include "base/log.h"
#include "probe/machine_probe.h"

namespace rdmacoll::probe {

struct FoundProfile {
  enum class Source { off, none, file, measured };

  MachineProfile profile;  // empty if `source` is off or none
  Source source = Source::off;
  std::string path;      // the file; "": there is no folder for it
  std::string note;      // a sentence about a file that could not be used or written; "": none
  Nanoseconds took = 0;  // the time that the measurement took
};
std::string_view name_of(FoundProfile::Source source);

// The file for this machine's profile: RDMACOLL_PROFILE, or one for each key in the cache folder.
std::string profile_path(const Config& config, const std::string& key);

// Reads the profile from its file. If that has none for this machine, or lacks numbers, it measures
// by `plan`, and writes the result. Another rank or job may write at the same time: a file is
// replaced as a whole. A file that the user named may come from another machine. No fault is an
// error: the note tells of it.
FoundProfile find_profile(const Config& config, const MachineFacts& facts,
                          const std::optional<ProbePlan>& plan);
// Measures and writes in any case, unless the profile is off. `earlier`: the profile of an earlier
// start, whose better numbers stay.
FoundProfile renew_profile(const Config& config, const MachineFacts& facts, const ProbePlan& plan,
                           const MachineProfile& earlier = {});

}  // namespace rdmacoll::probe
