// Reads facts about RDMA devices that the kernel has in files and the library does not report.
#pragma once

#include <string>
#include <vector>

#include "transport/rdma/facts.h"

namespace rdmacoll::rdma {

// `root` is /sys/class/infiniband, or a similar folder in tests. An unreadable value is empty, 0 or
// -1, since a missing fact is no failure.
class Sysfs {
 public:
  explicit Sysfs(std::string root = "/sys/class/infiniband") : root_(std::move(root)) {}

  std::vector<std::string> devices() const;  // sorted
  std::string firmware(const std::string& device) const;
  std::string node_guid(const std::string& device) const;
  bool is_software(const std::string& device) const;
  int numa_node(const std::string& device) const;
  double gbit_per_s(const std::string& device, int port) const;
  // The GIDs that are set among the first `count`.
  std::vector<GidFacts> gids(const std::string& device, int port, int count) const;

 private:
  std::string line(const std::string& device, const std::string& file) const;

  std::string root_;
};

}  // namespace rdmacoll::rdma
