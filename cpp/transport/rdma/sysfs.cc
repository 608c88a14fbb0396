#include "transport/rdma/sysfs.h"

#include <arpa/inet.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <system_error>

#include "base/text.h"

namespace rdmacoll::rdma {
namespace {

namespace fs = std::filesystem;

GidType type_of(const std::string& written) {
  if (written == "RoCE v2") return GidType::roce_v2;
  // The kernel has one name for both. The port's link layer distinguishes them.
  if (written == "IB/RoCE v1") return GidType::roce_v1;
  return GidType::unknown;
}

}  // namespace

std::string Sysfs::line(const std::string& device, const std::string& file) const {
  std::ifstream stream(cat(root_, "/", device, "/", file));
  std::string text;
  std::getline(stream, text);
  return text;
}

std::vector<std::string> Sysfs::devices() const {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator entry(root_, error), end; !error && entry != end;
       entry.increment(error)) {
    names.push_back(entry->path().filename());
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::string Sysfs::firmware(const std::string& device) const { return line(device, "fw_ver"); }

std::string Sysfs::node_guid(const std::string& device) const { return line(device, "node_guid"); }

// soft-RoCE and soft-iWARP have no bus, whatever their name. Older kernels put them under the
// network card's bus, and then they have the file `parent`.
bool Sysfs::is_software(const std::string& device) const {
  std::error_code error;
  const std::string place = fs::canonical(cat(root_, "/", device), error);
  return place.find("/devices/virtual/") != std::string::npos ||
         fs::exists(cat(root_, "/", device, "/parent"), error);
}

int Sysfs::numa_node(const std::string& device) const {
  const std::string text = line(device, "device/numa_node");
  return text.empty() ? -1 : std::atoi(text.c_str());
}

// "100 Gb/sec (4X EDR)"
double Sysfs::gbit_per_s(const std::string& device, int port) const {
  return std::strtod(line(device, cat("ports/", port, "/rate")).c_str(), nullptr);
}

std::vector<GidFacts> Sysfs::gids(const std::string& device, int port, int count) const {
  const std::string folder = cat("ports/", port, "/");
  const bool is_infiniband = line(device, folder + "link_layer") == "InfiniBand";
  std::vector<GidFacts> found;
  for (int index = 0; index < count; ++index) {
    GidFacts facts{.index = index, .gid = {}, .type = GidType::unknown, .interface = {}};
    const std::string written = line(device, cat(folder, "gids/", index));
    if (::inet_pton(AF_INET6, written.c_str(), facts.gid.raw.data()) != 1) continue;
    if (facts.gid.is_zero()) continue;
    facts.type = is_infiniband ? GidType::infiniband
                               : type_of(line(device, cat(folder, "gid_attrs/types/", index)));
    facts.interface = line(device, cat(folder, "gid_attrs/ndevs/", index));
    found.push_back(std::move(facts));
  }
  return found;
}

}  // namespace rdmacoll::rdma
