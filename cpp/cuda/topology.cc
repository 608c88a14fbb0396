#include "cuda/topology.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <system_error>

#include "base/text.h"

namespace rdmacoll::cuda {
namespace {

namespace fs = std::filesystem;

constexpr uint16_t kNvidia = 0x10de;
constexpr std::string_view kDisplayClass = "0x03";

// Vendors of PCIe switches.
constexpr uint16_t kPlx = 0x10b5;
constexpr uint16_t kBroadcom = 0x1000;
constexpr uint16_t kMicrochip = 0x11f8;

std::string first_line(const std::string& path) {
  std::ifstream stream(path);
  std::string line;
  std::getline(stream, line);
  return std::string(trim(line));
}

uint16_t hex_number(const std::string& path) {
  return static_cast<uint16_t>(std::strtoul(first_line(path).c_str(), nullptr, 16));
}

std::string canonical(const std::string& path) {
  std::error_code error;
  fs::path found = fs::canonical(path, error);
  return error ? "" : found.string();
}

std::vector<std::string> entries(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    names.push_back(entry->path().filename());
  }
  std::sort(names.begin(), names.end());
  return names;
}

// "0000:83:00.0", with any number of digits of the domain
bool is_address(std::string_view name) {
  const std::size_t colon = name.find(':');
  return colon != std::string_view::npos && name.size() == colon + 8 && name[colon + 3] == ':' &&
         name[colon + 6] == '.';
}

bool is_root(std::string_view name) {
  return name.starts_with("pci") && name.find(':') != name.npos;
}

bool has_active_port(const std::string& nic) {
  const std::vector<std::string> ports = entries(nic + "/ports");
  return std::any_of(ports.begin(), ports.end(), [&](const std::string& port) {
    return first_line(cat(nic, "/ports/", port, "/state")).ends_with("ACTIVE");  // "4: ACTIVE"
  });
}

std::string_view maker_of(const Bridge& bridge) {
  switch (bridge.vendor) {
    case kPlx:
      return "PLX switch ";
    case kBroadcom:
      return "Broadcom switch ";
    case kMicrochip:
      return "Microchip switch ";
    default:
      return "switch ";
  }
}

// A device without a group is not translated: there is no IOMMU.
Known is_translated(const PciPlace& place) {
  if (place.root.empty()) return Known::unknown;
  if (place.iommu_group < 0 || place.iommu_type == "identity") return Known::no;
  if (place.iommu_type.starts_with("DMA")) return Known::yes;
  return Known::unknown;
}

Known either(Known a, Known b) {
  if (a == Known::yes || b == Known::yes) return Known::yes;
  return a == Known::no && b == Known::no ? Known::no : Known::unknown;
}

// Two devices meet in a switch. Its downstream port towards `place` redirects or not. Ports of
// further switches send traffic up in any case.
Known redirects_below(const PciPlace& place, std::size_t shared) {
  return shared < place.bridges.size() ? place.bridges[shared].redirects : Known::no;
}

}  // namespace

std::string_view text(Distance distance) {
  switch (distance) {
    case Distance::pix:
      return "PIX";
    case Distance::pxb:
      return "PXB";
    case Distance::phb:
      return "PHB";
    case Distance::node:
      return "NODE";
    case Distance::sys:
      return "SYS";
    case Distance::unknown:
      break;
  }
  return "?";
}

std::string pci_address(std::string_view text) {
  std::string address = lower(trim(text));
  if (std::count(address.begin(), address.end(), ':') == 1) return cat("0000:", address);
  // NVML writes eight digits of the domain, and the kernel at least four.
  while (address.find(':') > 4 && address.find(':') != std::string::npos && address[0] == '0') {
    address.erase(0, 1);
  }
  return address;
}

Known acs_redirects(std::string_view config) {
  constexpr std::size_t kPlainBytes = 256;  // extended capabilities begin here
  constexpr uint16_t kAcs = 0x000d;
  constexpr uint16_t kRedirectRequests = 0x04;
  constexpr uint16_t kRedirectCompletions = 0x08;
  const auto word = [&](std::size_t at) {
    return static_cast<uint32_t>(static_cast<unsigned char>(config[at])) |
           static_cast<uint32_t>(static_cast<unsigned char>(config[at + 1])) << 8;
  };
  if (config.size() <= kPlainBytes) return Known::unknown;
  std::size_t at = kPlainBytes;
  // A list is shorter than the space for it, so a loop in wrong bytes ends.
  for (std::size_t count = 0; count < config.size() / 4; ++count) {
    if (at + 8 > config.size() || at < kPlainBytes) break;
    const uint32_t id = word(at);
    if (id == kAcs) {
      const uint32_t control = word(at + 6);
      return (control & (kRedirectRequests | kRedirectCompletions)) != 0 ? Known::yes : Known::no;
    }
    at = word(at + 2) >> 4;
  }
  return Known::no;
}

PciWay way_between(const PciPlace& gpu, const PciPlace& nic, int numa_nodes) {
  PciWay way;
  if (gpu.root.empty() || nic.root.empty()) return way;
  way.is_translated = either(is_translated(gpu), is_translated(nic));
  way.is_flat = gpu.is_flat() || nic.is_flat();
  if (way.is_flat) return way;
  std::size_t shared = 0;
  while (gpu.root == nic.root && shared < gpu.bridges.size() && shared < nic.bridges.size() &&
         gpu.bridges[shared].address == nic.bridges[shared].address) {
    ++shared;
  }
  if (shared > 0) {
    // Below a switch's upstream port, each device has a downstream port. More bridges are more
    // switches.
    const bool is_near = gpu.bridges.size() <= shared + 1 && nic.bridges.size() <= shared + 1;
    way.distance = is_near ? Distance::pix : Distance::pxb;
    const Bridge& last = gpu.bridges[shared - 1];
    way.shared_switch = cat(maker_of(last), last.address);
    way.redirects = either(redirects_below(gpu, shared), redirects_below(nic, shared));
    // With an IOMMU, the kernel keeps devices in one group unless ACS keeps them apart.
    if (way.redirects == Known::unknown && gpu.iommu_group >= 0 && nic.iommu_group >= 0) {
      way.redirects = gpu.iommu_group == nic.iommu_group ? Known::no : Known::yes;
    }
    return way;
  }
  way.redirects = Known::no;  // this way leads through the processor anyway
  if (gpu.root == nic.root) {
    way.distance = Distance::phb;
  } else if (numa_nodes == 1 || (gpu.numa_node >= 0 && gpu.numa_node == nic.numa_node)) {
    way.distance = Distance::node;
  } else if (gpu.numa_node >= 0 && nic.numa_node >= 0) {
    way.distance = Distance::sys;
  }
  return way;
}

bool PciTree::is_readable() const { return !entries(cat(root_, "/bus/pci/devices")).empty(); }

Known PciTree::redirects(const std::string& folder) const {
  std::ifstream stream(cat(folder, "/config"), std::ios::binary);
  const std::string config{std::istreambuf_iterator<char>(stream), {}};
  return acs_redirects(config);
}

PciPlace PciTree::read_place(const std::string& folder) const {
  PciPlace place;
  const fs::path full = canonical(folder);
  if (full.empty()) return place;
  std::string so_far;
  for (const fs::path& part : full) {
    so_far = (fs::path(so_far) / part).string();
    const std::string name = part.string();
    if (place.root.empty()) {
      if (is_root(name)) place.root = name;
    } else if (is_address(name) && fs::path(so_far) != full) {
      place.bridges.push_back({.address = name,
                               .vendor = hex_number(so_far + "/vendor"),
                               .device = hex_number(so_far + "/device"),
                               .redirects = redirects(so_far)});
    }
  }
  if (is_address(full.filename().string())) place.address = full.filename().string();
  if (place.address.empty()) place.root.clear();
  place.vendor = hex_number(full.string() + "/vendor");
  place.device = hex_number(full.string() + "/device");
  const std::string node = first_line(full.string() + "/numa_node");
  if (!node.empty()) place.numa_node = std::atoi(node.c_str());
  const std::string group = fs::path(canonical(full.string() + "/iommu_group")).filename();
  if (!group.empty()) {
    place.iommu_group = std::atoi(group.c_str());
    place.iommu_type = first_line(cat(full.string(), "/iommu_group/type"));
  }
  return place;
}

PciPlace PciTree::place(const std::string& address) const {
  PciPlace found = read_place(cat(root_, "/bus/pci/devices/", address));
  found.address = address;
  return found;
}

std::vector<NicPlace> PciTree::nics() const {
  std::vector<NicPlace> found;
  for (const std::string& name : entries(cat(root_, "/class/infiniband"))) {
    const std::string folder = cat(root_, "/class/infiniband/", name);
    NicPlace nic;
    nic.name = name;
    nic.driver = fs::path(canonical(folder + "/device/driver")).filename();
    nic.is_active = has_active_port(folder);
    nic.place = read_place(folder + "/device");
    // soft-RoCE and soft-iWARP are virtual devices. Older kernels give them the file `parent`.
    std::error_code error;
    nic.is_software = canonical(folder).find("/devices/virtual/") != std::string::npos ||
                      fs::exists(folder + "/parent", error);
    if (nic.is_software) nic.place = {};
    found.push_back(std::move(nic));
  }
  return found;
}

std::vector<std::string> PciTree::nvidia_gpus() const {
  std::vector<std::string> found;
  for (const std::string& name : entries(cat(root_, "/bus/pci/devices"))) {
    const std::string folder = cat(root_, "/bus/pci/devices/", name);
    if (hex_number(folder + "/vendor") != kNvidia) continue;
    if (first_line(folder + "/class").starts_with(kDisplayClass)) found.push_back(name);
  }
  return found;
}

int PciTree::numa_nodes() const {
  const std::vector<std::string> names = entries(cat(root_, "/devices/system/node"));
  return static_cast<int>(std::count_if(names.begin(), names.end(), [](const std::string& name) {
    return name.starts_with("node") && name.size() > 4 &&
           std::isdigit(static_cast<unsigned char>(name[4])) != 0;
  }));
}

PciWay PciTree::way(const PciPlace& gpu, const PciPlace& nic) const {
  return way_between(gpu, nic, numa_nodes());
}

}  // namespace rdmacoll::cuda
