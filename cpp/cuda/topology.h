// The places of GPUs and NICs in the PCIe tree, read below a /sys root, and their distances.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace rdmacoll::cuda {

// The distances of `nvidia-smi topo -m`. Larger is farther.
enum class Distance : uint8_t {
  pix,   // at most one PCIe switch between the two
  pxb,   // several switches, and no host bridge
  phb,   // a host bridge, which is part of the processor
  node,  // the connection between the host bridges of a NUMA node
  sys,   // the connection between NUMA nodes (QPI, UPI, Infinity Fabric)
  unknown,
};
std::string_view text(Distance distance);  // "PIX"

// Whether something is so, as far as this process can read it.
enum class Known : uint8_t { no, yes, unknown };

// A bridge on the way from the host to a device.
struct Bridge {
  std::string address;
  uint16_t vendor = 0;
  uint16_t device = 0;
  // Access Control Services send traffic between two devices of a switch up to the processor.
  // Without root privileges the kernel hides these registers.
  Known redirects = Known::unknown;

  bool operator==(const Bridge&) const = default;
};

// One device in the tree. A missing fact is empty, -1 or unknown, and no error.
struct PciPlace {
  std::string address;          // "0000:83:00.0"; "": not a PCIe device
  std::string root;             // the host bridge: "pci0000:80"; "": the tree cannot be read
  std::vector<Bridge> bridges;  // from the root port to the device's parent
  uint16_t vendor = 0;
  uint16_t device = 0;
  int numa_node = -1;
  int iommu_group = -1;    // -1: no IOMMU is in use for this device, or it is not known
  std::string iommu_type;  // the group's: "identity" (passes through), "DMA", "DMA-FQ"

  // A device of a real machine hangs below a root port. Virtual machines may show a flat list.
  bool is_flat() const { return !root.empty() && bridges.empty(); }
};

struct NicPlace {
  std::string name;    // "mlx5_0"
  std::string driver;  // the kernel's: "mlx5_core"; "": not known, or in software
  bool is_software = false;
  bool is_active = false;  // one of its ports is
  PciPlace place;
};

// The way between two devices.
struct PciWay {
  Distance distance = Distance::unknown;
  std::string shared_switch;             // "PLX switch 0000:81:00.0", for PIX and PXB
  Known redirects = Known::unknown;      // by ACS, on the ways below the shared switch
  Known is_translated = Known::unknown;  // an IOMMU translates the addresses of one of the two
  bool is_flat = false;                  // the tree of this virtual machine shows no bridges
};

// The PCIe tree below a /sys root.
class PciTree {
 public:
  explicit PciTree(std::string sys_root = "/sys") : root_(std::move(sys_root)) {}

  bool is_readable() const;  // containers may have no /sys, or an empty one
  // `address` as the tree writes it (pci_address). A device that is not there has an empty root.
  PciPlace place(const std::string& address) const;
  std::vector<NicPlace> nics() const;            // by name
  std::vector<std::string> nvidia_gpus() const;  // PCI addresses of display controllers
  int numa_nodes() const;                        // 0: not known
  PciWay way(const PciPlace& gpu, const PciPlace& nic) const;

 private:
  PciPlace read_place(const std::string& folder) const;
  Known redirects(const std::string& folder) const;

  std::string root_;
};

// The address as /sys writes it: "0000:83:00.0" from "00000000:83:00.0" or "83:00.0".
std::string pci_address(std::string_view text);

// Pure. `numa_nodes` is the machine's number of NUMA nodes, 0 if it is not known.
PciWay way_between(const PciPlace& gpu, const PciPlace& nic, int numa_nodes);

// Reads ACS from a device's config space. Unknown if the bytes end before the capability list.
Known acs_redirects(std::string_view config);

}  // namespace rdmacoll::cuda
