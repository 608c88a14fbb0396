#include "cuda_sim/machine.h"

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <sstream>

#include "cuda_sim/json.h"

namespace rdmacoll::cuda_sim {
namespace {

using cuda::DeviceAttribute;

constexpr std::size_t kMi = std::size_t{1} << 20;

[[noreturn]] void refuse(const std::string& reason) {
  std::fprintf(stderr, "cuda_sim: CUDA_SIM_MACHINE: %s\n", reason.c_str());
  std::abort();
}

void set(GpuFacts& gpu, DeviceAttribute which, int value) {
  gpu.attributes[static_cast<int>(which)] = value;
}

void set_capability(GpuFacts& gpu, int major, int minor) {
  set(gpu, DeviceAttribute::capability_major, major);
  set(gpu, DeviceAttribute::capability_minor, minor);
}

GpuFacts common(const char* name, int place) {
  GpuFacts gpu;
  gpu.name = name;
  char text[48];
  std::snprintf(text, sizeof text, "GPU-5d4c%04x-0000-4000-8000-00000000%04x", place,
                0xabc0 + place);
  gpu.uuid = text;
  for (const auto which :
       {DeviceAttribute::can_map_host_memory, DeviceAttribute::unified_addressing,
        DeviceAttribute::managed_memory, DeviceAttribute::host_register,
        DeviceAttribute::gpudirect_rdma, DeviceAttribute::gpudirect_flush_options}) {
    set(gpu, which, 1);
  }
  for (const auto which :
       {DeviceAttribute::compute_mode, DeviceAttribute::multi_gpu_board,
        DeviceAttribute::multi_gpu_board_group, DeviceAttribute::gpudirect_writes_ordering,
        DeviceAttribute::memory_pools, DeviceAttribute::virtual_memory,
        DeviceAttribute::concurrent_managed_access}) {
    set(gpu, which, 0);
  }
  return gpu;
}

GpuFacts half_of_k80(int place) {
  GpuFacts gpu = common("Tesla K80", place);
  gpu.pci = place == 0 ? "0000:05:00.0" : "0000:06:00.0";
  gpu.bytes = 11441 * kMi;
  gpu.bar1_bytes = 16384 * kMi;
  gpu.peers = {1 - place};
  set(gpu, DeviceAttribute::multiprocessors, 13);
  set(gpu, DeviceAttribute::l2_bytes, 1536 << 10);
  set(gpu, DeviceAttribute::multi_gpu_board, 1);
  set(gpu, DeviceAttribute::multi_gpu_board_group, 5);
  set_capability(gpu, 3, 7);
  return gpu;
}

GpuFacts h100(int place) {
  GpuFacts gpu = common("NVIDIA H100 80GB HBM3", place);
  gpu.pci = place == 0 ? "0000:1b:00.0" : "0000:43:00.0";
  gpu.bytes = 81079 * kMi;
  gpu.bar1_bytes = 131072 * kMi;
  set(gpu, DeviceAttribute::multiprocessors, 132);
  set(gpu, DeviceAttribute::l2_bytes, 50 << 20);
  set(gpu, DeviceAttribute::memory_pools, 1);
  set(gpu, DeviceAttribute::virtual_memory, 1);
  set(gpu, DeviceAttribute::gpudirect_writes_ordering, 100);
  set(gpu, DeviceAttribute::dma_buf, 1);
  set(gpu, DeviceAttribute::concurrent_managed_access, 1);
  set(gpu, DeviceAttribute::ipc_events, 1);
  set_capability(gpu, 9, 0);
  return gpu;
}

Machine named(const std::string& name) {
  Machine machine;
  if (name == "k80") {
    machine.cuda_version = 11040;
    machine.ptx_version = 74;
    machine.driver_version = "470.256.02";
    machine.gpus = {half_of_k80(0), half_of_k80(1)};
    machine.nvml_order = {1, 0};
  } else if (name == "h100" || name == "h100x2") {
    machine.cuda_version = 13000;
    machine.ptx_version = 90;
    machine.driver_version = "580.159.04";
    machine.gpus = {h100(0)};
    machine.nvml_order = {0};
    if (name == "h100x2") {
      machine.gpus.push_back(h100(1));
      machine.gpus[0].peers = {1};
      machine.gpus[1].peers = {0};
      machine.nvml_order = {1, 0};
    }
  } else {
    refuse("\"" + name + "\" is neither k80, h100, h100x2 nor a file that can be read.");
  }
  return machine;
}

template <class Number>
void replace(const Json& from, const char* name, Number& value) {
  if (const Json* found = from.find(name)) value = static_cast<Number>(found->number);
}

void replace(const Json& from, const char* name, std::string& value) {
  if (const Json* found = from.find(name)) value = found->text;
}

void replace(const Json& from, const char* name, std::vector<int>& value) {
  const Json* found = from.find(name);
  if (!found) return;
  value.clear();
  for (const Json& one : found->items) value.push_back(static_cast<int>(one.number));
}

void replace(const Json& from, GpuFacts& gpu) {
  replace(from, "name", gpu.name);
  replace(from, "uuid", gpu.uuid);
  replace(from, "pci", gpu.pci);
  replace(from, "bytes", gpu.bytes);
  replace(from, "bar1_bytes", gpu.bar1_bytes);
  replace(from, "peers", gpu.peers);
  replace(from, "mig", gpu.is_mig);
  replace(from, "ipc", gpu.has_ipc);
  const Json* attributes = from.find("attributes");
  if (!attributes) return;
  for (const auto& [number, value] : attributes->members) {
    const int which = std::atoi(number.c_str());
    if (value.kind == Json::Kind::null) {
      gpu.attributes.erase(which);
    } else {
      gpu.attributes[which] = static_cast<int>(value.number);
    }
  }
}

Machine described(const Json& from) {
  std::string base = "k80";
  replace(from, "base", base);
  Machine machine = named(base);
  replace(from, "cuda", machine.cuda_version);
  replace(from, "ptx", machine.ptx_version);
  replace(from, "driver", machine.driver_version);
  if (const Json* gpus = from.find("gpus")) {
    const std::size_t known = machine.gpus.size();
    machine.gpus.resize(gpus->items.size(), machine.gpus.front());
    for (std::size_t place = 0; place < machine.gpus.size(); ++place) {
      if (place >= known && !gpus->items[place].find("uuid")) refuse("a further GPU has no uuid.");
      replace(gpus->items[place], machine.gpus[place]);
    }
    machine.nvml_order.clear();
    for (std::size_t left = machine.gpus.size(); left > 0; --left) {
      machine.nvml_order.push_back(static_cast<int>(left) - 1);
    }
  }
  replace(from, "nvml_order", machine.nvml_order);
  if (const Json* failures = from.find("failures")) {
    for (const auto& [name, result] : failures->members) {
      machine.failures[name] = static_cast<int>(result.number);
    }
  }
  return machine;
}

// CUDA takes the GPUs of the list up to the first entry that names none.
std::vector<int> visible_gpus(const Machine& machine) {
  std::vector<int> visible;
  const char* setting = std::getenv("CUDA_VISIBLE_DEVICES");
  if (!setting) {
    for (std::size_t place = 0; place < machine.gpus.size(); ++place) {
      visible.push_back(static_cast<int>(place));
    }
    return visible;
  }
  std::istringstream entries(setting);
  for (std::string entry; std::getline(entries, entry, ',');) {
    int found = -1;
    for (std::size_t place = 0; place < machine.gpus.size(); ++place) {
      const bool is_uuid = entry.size() > 4 && machine.gpus[place].uuid.starts_with(entry);
      if (is_uuid || entry == std::to_string(place)) found = static_cast<int>(place);
    }
    if (found < 0) break;
    visible.push_back(found);
  }
  return visible;
}

}  // namespace

cuda::Uuid GpuFacts::uuid_bytes() const {
  cuda::Uuid result = {};
  std::string digits;
  for (const char one : uuid.substr(4)) {
    if (one != '-') digits += one;
  }
  if (digits.size() != 32) refuse("the uuid \"" + uuid + "\" has not 32 digits.");
  for (std::size_t at = 0; at < 16; ++at) {
    result.bytes[at] =
        static_cast<unsigned char>(std::stoul(digits.substr(2 * at, 2), nullptr, 16));
  }
  return result;
}

int GpuFacts::attribute(DeviceAttribute which) const {
  const auto found = attributes.find(static_cast<int>(which));
  return found == attributes.end() ? 0 : found->second;
}

PciPlace pci_place(const std::string& text) {
  PciPlace place;
  if (std::sscanf(text.c_str(), "%x:%x:%x", &place.domain, &place.bus, &place.device) != 3) {
    refuse("the PCI address \"" + text + "\" is not like 0000:05:00.0.");
  }
  return place;
}

Machine machine_of_environment() {
  const char* setting = std::getenv("CUDA_SIM_MACHINE");
  const std::string name = setting ? setting : "k80";
  Machine machine;
  if (std::ifstream file(name); file) {
    std::ostringstream text;
    text << file.rdbuf();
    machine = described(read_json(text.str(), name));
  } else {
    machine = named(name);
  }
  for (GpuFacts& gpu : machine.gpus) {
    const PciPlace place = pci_place(gpu.pci);
    set(gpu, DeviceAttribute::pci_domain, static_cast<int>(place.domain));
    set(gpu, DeviceAttribute::pci_bus, static_cast<int>(place.bus));
    set(gpu, DeviceAttribute::pci_device, static_cast<int>(place.device));
  }
  machine.visible = visible_gpus(machine);
  return machine;
}

}  // namespace rdmacoll::cuda_sim
