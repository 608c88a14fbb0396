#include "cuda/gpu_system.h"

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <sstream>

#include "base/small_range.h"
#include "base/text.h"
#include "cuda/gdrcopy.h"
#include "cuda/gpus.h"

namespace rdmacoll::cuda {
namespace {

std::string content(const std::string& path) {
  std::ifstream stream(path);
  std::ostringstream text;
  text << stream.rdbuf();
  return text.str();
}

// "470.256.02" in "NVRM version: NVIDIA UNIX x86_64 Kernel Module  470.256.02  Thu May ..."
std::string driver_version_in(const std::string& text) {
  std::istringstream words(text);
  for (std::string word; words >> word;) {
    const bool is_version = std::count(word.begin(), word.end(), '.') >= 1 &&
                            std::all_of(word.begin(), word.end(), [](unsigned char letter) {
                              return std::isdigit(letter) != 0 || letter == '.';
                            });
    if (is_version) return word;
  }
  return "";
}

// Modules without parameters have no folder in /sys, and containers may have no /proc/modules.
std::string loaded_module(const SystemRoots& roots, Known& is_loaded) {
  const std::string modules = content(roots.proc + "/modules");
  std::error_code error;
  for (const std::string_view name : {"nvidia_peermem", "nv_peer_mem"}) {
    const bool is_listed = modules.starts_with(cat(name, " ")) ||
                           modules.find(cat("\n", name, " ")) != std::string::npos;
    if (!is_listed && !std::filesystem::exists(cat(roots.sys, "/module/", name), error)) continue;
    is_loaded = Known::yes;
    return std::string(name);
  }
  is_loaded = modules.empty() ? Known::unknown : Known::no;
  return "";
}

// Finds or adds the GPU. Those without a known address are different ones.
SystemGpu& gpu_at(std::vector<SystemGpu>& gpus, const std::string& address) {
  for (SystemGpu& each : gpus) {
    if (!address.empty() && each.profile.address == address) return each;
  }
  gpus.emplace_back().profile.address = address;
  return gpus.back();
}

// Finds the GPU of CUDA's facts among those of NVML, since their numbers differ. The key is the
// UUID. A part of a GPU (MIG) has a UUID of its own, so its key is the PCI address.
GpuProfile& same_gpu(const GpuFacts& facts, std::vector<SystemGpu>& gpus) {
  for (SystemGpu& each : gpus) {
    if (each.profile.uuid == facts.uuid) return each.profile;
  }
  return gpu_at(gpus, pci_address(facts.pci)).profile;
}

void add_cuda(const GpuFacts& facts, std::vector<SystemGpu>& gpus) {
  GpuProfile& profile = same_gpu(facts, gpus);
  profile.name = facts.name;
  if (profile.uuid.empty()) profile.uuid = facts.uuid;
  profile.capability = facts.capability;
  profile.memory_bytes = facts.bytes;
  profile.compute_mode = facts.compute_mode;
  profile.is_mig = profile.is_mig || facts.uuid.starts_with("MIG-");
  profile.gpudirect = facts.has_gpudirect ? Known::yes : Known::no;
  profile.dma_buf = facts.has_dma_buf ? Known::yes : Known::no;
  profile.writes_ordering = facts.writes_ordering;
  profile.flush_options = facts.flush_options;
}

void read_gdrcopy(const std::string& library, GpuSystem& system) {
  if (library.empty() || system.gpus.empty()) return;
  Gdrcopy::Problem problem;
  const std::shared_ptr<Gdrcopy> opened = Gdrcopy::open(library, problem);
  system.gdrcopy_problem = problem.text;
  if (opened != nullptr) system.gdrcopy_version = opened->version();
}

Status read_cuda(const std::string& library, std::vector<SystemGpu>& gpus) {
  const Driver* driver = nullptr;
  RC_RETURN_IF_ERROR(Driver::open(library, driver));
  return add_cuda_facts(*driver, gpus);
}

// `add_cuda` adds the facts of CUDA to those of NVML and of the PCIe tree.
GpuSystem read_system(const SystemRoots& roots, const std::function<void(GpuSystem&)>& add_cuda) {
  GpuSystem system;
  const PciTree tree(roots.sys);
  const NvmlFacts nvml = read_nvml(roots.nvml_library);
  system.nvml_problem = nvml.problem;
  add_nvml_facts(nvml, system.gpus);
  for (const std::string& address : tree.nvidia_gpus()) gpu_at(system.gpus, address);
  const std::string version = content(roots.proc + "/driver/nvidia/version");
  if (!version.empty()) {
    system.is_open = version.find("Open Kernel Module") != version.npos ? Known::yes : Known::no;
  }
  system.driver_version =
      nvml.driver_version.empty() ? driver_version_in(version) : nvml.driver_version;
  add_cuda(system);
  std::sort(system.gpus.begin(), system.gpus.end(), [](const SystemGpu& a, const SystemGpu& b) {
    return a.profile.address < b.profile.address;
  });
  for (SystemGpu& gpu : system.gpus) {
    gpu.place = tree.place(gpu.profile.address);
    if (gpu.profile.name.empty()) gpu.profile.name = "NVIDIA GPU";
  }
  system.nics = tree.nics();
  system.numa_nodes = tree.numa_nodes();
  system.host.sys_is_readable = tree.is_readable();
  system.host.driver_major = std::atoi(system.driver_version.c_str());
  system.module_name = loaded_module(roots, system.host.peer_module);
  const std::string release = content(roots.proc + "/sys/kernel/osrelease");
  std::sscanf(release.c_str(), "%d.%d", &system.kernel_major, &system.kernel_minor);
  return system;
}

// One NIC that can do what the setting forces is enough, since the job may use that one.
void forgive_other_nics(const GpuSystem& system, std::vector<Cell>& cells) {
  for (std::size_t gpu = 0; gpu < system.gpus.size(); ++gpu) {
    const auto can = [&](const Cell& cell) {
      return cell.gpu == gpu && system.nics[cell.nic].is_active && cell.decision.status.ok();
    };
    const bool has_one = is_any_of(cells, can);
    for (Cell& cell : cells) {
      if (cell.gpu != gpu || (!has_one && system.nics[cell.nic].is_active)) continue;
      cell.decision.status = {};
    }
  }
}

std::string nearer_nic(const std::vector<Cell>& cells, const GpuSystem& system, const Cell& cell) {
  const Cell* nearest = nullptr;
  for (const Cell& other : cells) {
    const NicPlace& nic = system.nics[other.nic];
    if (other.gpu != cell.gpu || nic.is_software || !nic.is_active) continue;
    if (nearest == nullptr || other.way.distance < nearest->way.distance) nearest = &other;
  }
  const bool is_nearer = nearest != nullptr && nearest->way.distance < cell.way.distance;
  return is_nearer ? system.nics[nearest->nic].name : "";
}

}  // namespace

void add_nvml_facts(const NvmlFacts& nvml, std::vector<SystemGpu>& gpus) {
  for (const NvmlGpu& gpu : nvml.gpus) {
    GpuProfile& profile = gpu_at(gpus, gpu.address).profile;
    profile.name = gpu.name;
    profile.uuid = gpu.uuid;
    profile.bar1_bytes = gpu.bar1_bytes;
    profile.bar1_free = gpu.bar1_free;
    profile.memory_bytes = gpu.memory_bytes;
    profile.capability = gpu.capability;
    profile.compute_mode = gpu.compute_mode;
    profile.is_mig = gpu.is_mig;
    profile.has_nvlink = gpu.has_nvlink;
  }
}

Status add_cuda_facts(const Driver& driver, std::vector<SystemGpu>& gpus) {
  int count = 0;
  RC_RETURN_IF_ERROR(driver.check(driver.call.cuDeviceGetCount(&count), "cuDeviceGetCount"));
  for (int ordinal = 0; ordinal < count; ++ordinal) {
    GpuFacts facts;
    RC_RETURN_IF_ERROR(read_facts(driver, ordinal, facts));
    add_cuda(facts, gpus);
  }
  return {};
}

bool has_gpu_driver(const SystemRoots& roots) {
  std::error_code error;
  return std::filesystem::exists(roots.proc + "/driver/nvidia/version", error) ||
         std::filesystem::exists(roots.sys + "/module/nvidia", error);
}

GpuSystem read_gpu_system(const SystemRoots& roots) {
  return read_system(roots, [&](GpuSystem& system) {
    if (system.gpus.empty()) return;
    const Status status = read_cuda(roots.cuda_library, system.gpus);
    if (!status.ok()) system.cuda_problem = status.message();
    read_gdrcopy(roots.gdrcopy_library, system);
  });
}

GpuSystem read_gpu_system_without_cuda(const SystemRoots& roots) {
  return read_system(roots, [](GpuSystem&) {});
}

std::vector<Cell> decide_all(const GpuSystem& system, const GpuDirectSetting& setting,
                             std::span<const std::string> used) {
  std::vector<Cell> cells;
  for (std::size_t gpu = 0; gpu < system.gpus.size(); ++gpu) {
    for (std::size_t nic = 0; nic < system.nics.size(); ++nic) {
      const PciWay way =
          way_between(system.gpus[gpu].place, system.nics[nic].place, system.numa_nodes);
      cells.push_back({.gpu = gpu, .nic = nic, .way = way, .decision = {}});
    }
  }
  for (Cell& cell : cells) {
    const SystemGpu& gpu = system.gpus[cell.gpu];
    const NicPlace& nic = system.nics[cell.nic];
    PolicyFacts facts;
    facts.gpu = gpu.profile;
    facts.nic = nic.name;
    facts.nic_is_software = nic.is_software;
    facts.ability = ability_of(nic.driver, system.kernel_major, system.kernel_minor);
    facts.way = cell.way;
    facts.host = system.host;
    facts.host.sys_is_readable = !gpu.place.root.empty() && !nic.place.root.empty();
    facts.setting = setting;
    facts.nearer_nic = nearer_nic(cells, system, cell);
    facts.is_used = !used.empty();
    cell.decision = decide(facts);
  }
  if (used.empty()) {
    forgive_other_nics(system, cells);
  } else {
    std::erase_if(cells, [&](const Cell& cell) {
      return std::find(used.begin(), used.end(), system.nics[cell.nic].name) == used.end();
    });
  }
  return cells;
}

std::vector<std::string> warnings_of(const GpuSystem& system, const std::vector<Cell>& cells) {
  std::vector<std::string> warnings;
  for (std::size_t gpu = 0; gpu < system.gpus.size(); ++gpu) {
    const auto warned = std::find_if(cells.begin(), cells.end(), [&](const Cell& cell) {
      return cell.gpu == gpu && system.nics[cell.nic].is_active && !cell.decision.warning.empty();
    });
    if (warned != cells.end()) warnings.push_back(warned->decision.warning);
  }
  return warnings;
}

}  // namespace rdmacoll::cuda
