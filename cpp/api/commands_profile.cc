// The profile of this machine, for `rdmacoll tune`, `doctor` and `plan`.
#include <unistd.h>

#include <algorithm>

#include "api/commands.h"
#include "base/text.h"
#include "collectives/choose.h"
#include "cuda/copy_probe.h"
#include "cuda/driver.h"
#include "probe/profile_file.h"

namespace rdmacoll {
namespace {

// The segments of a broadcast between two ranks that stage it.
std::string segments_json(const CopyCosts& copies) {
  std::vector<std::string> segments;
  for (const uint64_t bytes : {uint64_t{1} << 20, uint64_t{16} << 20, uint64_t{256} << 20}) {
    const Facts facts{.ranks = 2, .bytes = bytes, .stages_gpus = true, .gpu_copies = copies};
    const Choice choice = choose(row_of(Kind::broadcast).result, Tuning(), facts);
    segments.push_back(
        cat("{\"bytes\": ", bytes, ", \"segment_bytes\": ", choice.segment_bytes, "}"));
  }
  return cat("[", join(segments, ", "), "]");
}

// Copies to and from each GPU of this process. "[]" without a driver.
std::string gpu_copies_json(const Config& config) {
  const cuda::Driver* driver = nullptr;
  std::vector<std::string> found;
  if (cuda::Driver::open(config.cuda_library, driver).ok()) {
    cuda::Gpus gpus(*driver);
    const SteadyClock clock;
    Gpu gpu = kHost;
    for (int number = 0; gpus.use(number, gpu).ok(); ++number) {
      CopyCosts copies;
      const Status status = cuda::measure_copies(gpus, gpu, clock, copies);
      found.push_back(
          cat("{\"gpu\": ", json_quote(cat("cuda:", number, " (", gpus.facts(gpu).name, ")")),
              ", \"start_us\": ", copies.start_us, ", \"bytes_per_us\": ", copies.bytes_per_us,
              ", \"problem\": ", json_quote(status.ok() ? "" : status.message()),
              ", \"segments\": ", segments_json(copies), "}"));
    }
  }
  return cat("[", join(found, ", "), "]");
}

}  // namespace

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
             join(fields, ", "), "], \"gpus\": ", measure ? gpu_copies_json(config) : "[]", "}");
}

LinkModel with_kept_profile(LinkModel links, const Config& config) {
  const probe::MachineProfile profile =
      probe::find_profile(config, probe::read_machine(), std::nullopt).profile;
  links = probe::with_profile(links, profile);
  if (profile.cores > 0) links.memory.cores = static_cast<double>(sysconf(_SC_NPROCESSORS_ONLN));
  return links;
}

}  // namespace rdmacoll
