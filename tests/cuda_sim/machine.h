// The machine whose driver is emulated: its GPUs, and the versions of CUDA and of the driver.
//
// CUDA_SIM_MACHINE names one (k80, h100, h100x2) or a JSON file:
//   {"base": "k80", "cuda": 11040, "driver": "470.256.02", "ptx": 74, "nvml_order": [1, 0],
//    "gpus": [{"name": "Tesla K80", "uuid": "GPU-...", "pci": "0000:05:00.0", "bytes": 12e9,
//              "bar1_bytes": 17179869184, "attributes": {"116": 1}, "peers": [1], "mig": false,
//              "ipc": true}],
//    "failures": {"cuInit": 999}}
// Every member is optional. A function in `failures` returns this result always. A value replaces
// that of `base`; attributes with value null are unknown to the driver. CUDA_VISIBLE_DEVICES hides
// GPUs from CUDA, but not from NVML.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "cuda/driver_api.h"

namespace rdmacoll::cuda_sim {

struct GpuFacts {
  std::string name;
  std::string uuid;  // "GPU-" and 32 hexadecimal digits in groups
  std::string pci;   // "0000:05:00.0"
  std::size_t bytes = 0;
  std::size_t bar1_bytes = 0;
  bool is_mig = false;
  bool has_ipc = true;            // other processes open its memory
  std::vector<int> peers;         // places in Machine::gpus
  std::map<int, int> attributes;  // CUdevice_attribute; an absent one is unknown

  cuda::Uuid uuid_bytes() const;
  int attribute(cuda::DeviceAttribute which) const;  // 0 if unknown
};

struct Machine {
  int cuda_version = 0;
  int ptx_version = 0;  // 74 for .version 7.4
  std::string driver_version;
  std::map<std::string, int> failures;  // results by function
  std::vector<GpuFacts> gpus;
  std::vector<int> visible;     // places in gpus, as CUDA counts them
  std::vector<int> nvml_order;  // places in gpus, as NVML counts them
};

// Aborts with a sentence if the description cannot be used.
Machine machine_of_environment();

// Reads "0000:05:00.0" as domain, bus and device.
struct PciPlace {
  unsigned domain = 0, bus = 0, device = 0;
};
PciPlace pci_place(const std::string& text);

}  // namespace rdmacoll::cuda_sim
