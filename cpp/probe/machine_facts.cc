#include "probe/machine_facts.h"

#include <sched.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <thread>
#include <utility>

#include "base/cgroup.h"
#include "base/text.h"
#include "base/thread.h"
#include "bootstrap/numa.h"

namespace rdmacoll::probe {
namespace {

std::string first_line(const std::string& path) {
  std::string line;
  std::ifstream stream(path);
  std::getline(stream, line);
  return std::string(trim(line));
}

// The processor's names for its kind, from the first block of /proc/cpuinfo.
std::string processor_of(const std::string& root) {
  std::map<std::string, std::string> found;
  std::ifstream stream(root + "/proc/cpuinfo");
  for (std::string line; std::getline(stream, line) && !line.empty();) {
    const std::size_t colon = std::min(line.find(':'), line.size());
    const std::string_view value = std::string_view(line).substr(std::min(colon + 1, line.size()));
    found.emplace(trim(std::string_view(line).substr(0, colon)), trim(value));
  }
  std::vector<std::string> parts;
  for (const auto& [name, shown] : {std::pair{"model name", ""},
                                    {"cpu family", "family "},
                                    {"model", "model "},
                                    {"CPU implementer", "implementer "},
                                    {"CPU part", "part "}}) {
    if (!found[name].empty()) parts.push_back(cat(shown, found[name]));
  }
  return parts.empty() ? "unknown" : join(parts, ", ");
}

std::string kernel_release() {
  utsname names{};
  return ::uname(&names) == 0 ? names.release : "unknown";
}

// The last level of unified or data cache below `folder` with this number.
void read_cache(const std::string& folder, MachineFacts& facts) {
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    const std::string path = entry.path();
    const std::string level = first_line(path + "/level");
    if (first_line(path + "/type") == "Instruction" || (level != "2" && level != "3")) continue;
    const uint64_t bytes = bytes_from(first_line(path + "/size")).value_or(0);
    if (level == "2") facts.l2_bytes = bytes;
    if (level == "3") {
      facts.l3_bytes = bytes;
      facts.l3_cpus = parse_cpu_list(first_line(path + "/shared_cpu_list"));
    }
  }
}

// The word in brackets: "always [madvise] never".
std::string chosen_word(const std::string& line) {
  const std::size_t open = line.find('[');
  const std::size_t close = line.find(']', open == line.npos ? line.size() : open);
  return close == line.npos ? "" : line.substr(open + 1, close - open - 1);
}

// All CPUs that the control group permits. A launcher may have bound this process to one of them,
// and its neighbours to the others. A thread finds out, so that the process stays bound.
std::vector<int> permitted_cpus() {
  std::vector<int> permitted = allowed_cpus();
  std::thread scout;
  const Status started = start_thread(scout, "a thread that counts CPUs", [&permitted] {
    cpu_set_t all;
    std::memset(&all, 0xff, sizeof all);
    if (::sched_setaffinity(0, sizeof all, &all) == 0) permitted = allowed_cpus();
  });
  if (started.ok()) scout.join();
  return permitted;
}

}  // namespace

std::string MachineFacts::key() const {
  return cat(processor, "; Linux ", kernel, "; ", cpus.size(), " of ", online, " cores",
             quota > 0 ? cat(", time of ", quota) : "");
}

MachineFacts read_machine(std::vector<int> cpus, const std::string& root) {
  MachineFacts facts{.processor = processor_of(root),
                     .kernel = kernel_release(),
                     .cpus = cpus.empty() ? permitted_cpus() : std::move(cpus),
                     .online = std::max(1, static_cast<int>(::sysconf(_SC_NPROCESSORS_ONLN))),
                     .quota = group_cores(root).value_or(0),
                     .memory_limit = memory_limit_bytes(root)};
  const int cpu = facts.cpus.empty() ? 0 : facts.cpus.front();
  const std::string folder = cat(root, "/sys/devices/system/cpu/cpu", cpu);
  read_cache(folder + "/cache", facts);
  facts.siblings = parse_cpu_list(first_line(folder + "/topology/thread_siblings_list"));
  facts.shared_huge =
      chosen_word(first_line(root + "/sys/kernel/mm/transparent_hugepage/shmem_enabled"));
  return facts;
}

}  // namespace rdmacoll::probe
