#include "base/cgroup.h"

#include <fstream>

#include "base/text.h"

namespace rdmacoll {
namespace {

// Version 1 of control groups says "no limit" by a number close to 2^63.
constexpr uint64_t kNoLimit = uint64_t{1} << 60;

// Reads the group at `path` below `base` and all groups above it, and keeps the least limit.
void read_groups(const std::string& base, std::string path, const std::string& name,
                 std::optional<GroupLimit>& least) {
  for (;;) {
    const std::string file = cat(base, path == "/" ? "" : path, "/", name);
    std::ifstream stream(file);
    uint64_t value = 0;  // "max" is no number
    if (stream >> value && value < (least ? least->value : kNoLimit)) least = {value, file};
    const std::size_t slash = path.rfind('/');
    if (slash == path.npos || path == "/") return;
    path.resize(slash);
  }
}

}  // namespace

std::optional<GroupLimit> group_limit(const std::string& kind, const std::string& file,
                                      const std::string& old_file, const std::string& root) {
  std::optional<GroupLimit> least;
  std::ifstream groups(root + "/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    const std::size_t first = line.find(':');
    const std::size_t second = first == line.npos ? line.npos : line.find(':', first + 1);
    if (second == line.npos) continue;
    const std::string kinds = line.substr(first + 1, second - first - 1);
    const std::string path = line.substr(second + 1);
    if (kinds.empty()) read_groups(root + "/sys/fs/cgroup", path, file, least);
    if (cat(",", kinds, ",").find(cat(",", kind, ",")) != std::string::npos) {
      read_groups(cat(root, "/sys/fs/cgroup/", kind), path, old_file, least);
    }
  }
  return least;
}

}  // namespace rdmacoll
