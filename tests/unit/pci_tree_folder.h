// Makes a /sys folder from a recorded PCIe tree (tests/unit/pci_trees), for tests.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <string>

namespace rdmacoll::cuda {

namespace fs = std::filesystem;

// A recorded tree has one line for each device: "device PATH vendor=0x10de class=0x030200 numa=0
// group=4 type=DMA acs=0x1d driver=mlx5_core". "nic NAME PATH [DOWN]" is an RDMA device and the
// state of its port, "software NAME" one without a bus, and "nodes 2" the number of NUMA nodes.
class PciTreeFolder {
 public:
  explicit PciTreeFolder(const std::string& recorded = "") {
    std::string name =
        (fs::temp_directory_path() / ("rdmacoll-pci-" + std::string(6, 'X'))).string();
    root_ = ::mkdtemp(name.data());
    std::ifstream stream(recorded);
    for (std::string line; std::getline(stream, line);) add(line);
  }
  ~PciTreeFolder() { fs::remove_all(root_); }
  PciTreeFolder(const PciTreeFolder&) = delete;
  PciTreeFolder& operator=(const PciTreeFolder&) = delete;

  std::string path() const { return root_.string(); }

  void add(const std::string& line) {
    std::istringstream stream(line);
    std::string word, name, path;
    stream >> word >> name >> path;
    const fs::path device = root_ / "devices" / (word == "nic" ? path : name);
    const fs::path nic =
        word == "nic" ? device / "infiniband" / name : root_ / "devices/virtual/infiniband" / name;
    if (word == "device") {
      Facts facts;
      for (std::istringstream rest(line); rest >> word;) {
        const std::size_t equals = word.find('=');
        if (equals != word.npos) facts[word.substr(0, equals)] = word.substr(equals + 1);
      }
      add_device(device, facts);
    } else if (word == "nic" || word == "software") {
      link(nic, root_ / "class/infiniband" / name);
      fs::create_directories(nic);
      if (word == "nic") link(device, nic / "device");
      const bool is_down = line.ends_with(" DOWN");
      fs::create_directories(nic / "ports/1");
      write(nic / "ports/1/state", is_down ? "1: DOWN\n" : "4: ACTIVE\n");
    } else if (word == "nodes") {
      for (int node = 0; node < std::stoi(name); ++node) {
        fs::create_directories(root_ / "devices/system/node" / ("node" + std::to_string(node)));
      }
    }
  }

 private:
  using Facts = std::map<std::string, std::string>;

  void add_device(const fs::path& folder, const Facts& facts) {
    fs::create_directories(folder);
    link(folder, root_ / "bus/pci/devices" / folder.filename());
    for (const auto& [name, value] : facts) {
      if (name == "vendor" || name == "device" || name == "class") write(folder / name, value);
      if (name == "numa") write(folder / "numa_node", value);
      if (name == "driver") link_made(root_ / "bus/pci/drivers" / value, folder / "driver");
      if (name == "group") {
        link_made(root_ / "kernel/iommu_groups" / value, folder / "iommu_group");
        const auto type = facts.find("type");
        if (type != facts.end()) write(folder / "iommu_group/type", type->second);
      }
      if (name == "acs") write(folder / "config", config_space(value));
    }
    // Without root privileges the kernel shows the first 64 bytes.
    if (!facts.contains("acs")) write(folder / "config", std::string(64, '\0'));
  }

  // The bytes of a config space with the control register of ACS. "none": without ACS.
  static std::string config_space(const std::string& control) {
    std::string bytes(4096, '\0');
    const auto word = [&](std::size_t at, unsigned value) {
      bytes[at] = static_cast<char>(value & 0xff);
      bytes[at + 1] = static_cast<char>(value >> 8);
    };
    word(0x100, 0x0001);  // advanced error reporting comes first, as usual
    word(0x102, 0x1401);  // the next one is at 0x140
    if (control == "none") {
      word(0x102, 0x0001);
      return bytes;
    }
    word(0x140, 0x000d);
    word(0x142, 0x0001);
    word(0x146, static_cast<unsigned>(std::stoul(control, nullptr, 16)));
    return bytes;
  }

  static void write(const fs::path& file, const std::string& text) {
    std::ofstream(file, std::ios::binary) << text;
  }
  static void link(const fs::path& to, const fs::path& from) {
    fs::create_directories(from.parent_path());
    fs::create_symlink(to, from);
  }
  static void link_made(const fs::path& to, const fs::path& from) {
    fs::create_directories(to);
    link(to, from);
  }

  fs::path root_;
};

}  // namespace rdmacoll::cuda
