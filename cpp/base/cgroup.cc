#include "base/cgroup.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <functional>

#include "base/text.h"

namespace rdmacoll {
namespace {

// Version 1 of control groups says "no limit" by a number close to 2^63.
constexpr uint64_t kNoLimit = uint64_t{1} << 60;

// Called with the folder of a group, and whether it is one of version 1.
using Visit = std::function<void(const std::string& folder, bool is_old)>;

// Visits the group at `path` below `base` and all groups above it.
void visit_groups(const std::string& base, std::string path, bool is_old, const Visit& visit) {
  for (;;) {
    visit(cat(base, path == "/" ? "" : path), is_old);
    const std::size_t slash = path.rfind('/');
    if (slash == path.npos || path == "/") return;
    path.resize(slash);
  }
}

// Visits the groups that limit the process in this `kind`.
void visit_groups(const std::string& kind, const std::string& root, const Visit& visit) {
  std::ifstream groups(root + "/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    const std::size_t first = line.find(':');
    const std::size_t second = first == line.npos ? line.npos : line.find(':', first + 1);
    if (second == line.npos) continue;
    const std::string kinds = line.substr(first + 1, second - first - 1);
    const std::string path = line.substr(second + 1);
    if (kinds.empty()) visit_groups(root + "/sys/fs/cgroup", path, false, visit);
    if (cat(",", kinds, ",").find(cat(",", kind, ",")) != std::string::npos) {
      visit_groups(cat(root, "/sys/fs/cgroup/", kind), path, true, visit);
    }
  }
}

}  // namespace

std::optional<GroupLimit> group_limit(const std::string& kind, const std::string& file,
                                      const std::string& old_file, const std::string& root) {
  std::optional<GroupLimit> least;
  visit_groups(kind, root, [&](const std::string& folder, bool is_old) {
    const std::string path = cat(folder, "/", is_old ? old_file : file);
    std::ifstream stream(path);
    uint64_t value = 0;  // "max" is no number
    if (stream >> value && value < (least ? least->value : kNoLimit)) least = {value, path};
  });
  return least;
}

uint64_t memory_limit_bytes(const std::string& root) {
  const long pages = ::sysconf(_SC_PHYS_PAGES), page = ::sysconf(_SC_PAGESIZE);
  const uint64_t of_machine = pages > 0 && page > 0 ? static_cast<uint64_t>(pages) * page : 0;
  const auto group = group_limit("memory", "memory.max", "memory.limit_in_bytes", root);
  if (!group) return of_machine;
  return of_machine == 0 ? group->value : std::min(of_machine, group->value);
}

std::optional<double> group_cores(const std::string& root) {
  std::optional<double> least;
  visit_groups("cpu", root, [&](const std::string& folder, bool is_old) {
    std::ifstream first(folder + (is_old ? "/cpu.cfs_quota_us" : "/cpu.max"));
    std::ifstream second(folder + "/cpu.cfs_period_us");
    double quota = 0, period = 0;  // microseconds; "max" or -1: no quota
    if (!(first >> quota) || !((is_old ? second : first) >> period)) return;
    if (quota > 0 && period > 0 && (!least || quota / period < *least)) least = quota / period;
  });
  return least;
}

}  // namespace rdmacoll
