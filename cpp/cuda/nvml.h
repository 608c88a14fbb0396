// Facts that NVIDIA's management library (NVML) tells of GPUs: BAR1, PCIe addresses, MIG. The
// library is opened at run time. Its numbers of GPUs differ from CUDA's, so GPUs are told by UUID.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace rdmacoll::cuda {

namespace nvml {

using Device = struct DeviceOfNvml*;

struct Bar1 {  // nvmlBAR1Memory_t
  unsigned long long total;
  unsigned long long free;
  unsigned long long used;
};
struct Pci {  // nvmlPciInfo_t
  char short_address[16];
  unsigned domain;
  unsigned bus;
  unsigned device;
  unsigned device_id;
  unsigned subsystem_id;
  char address[32];
};
struct Memory {  // nvmlMemory_t
  unsigned long long total;
  unsigned long long free;
  unsigned long long used;
};

// X(name, parameters): the functions that are used. A library without one of the second list leaves
// facts out.
#define RC_NVML_FUNCTIONS(X)                                         \
  X(nvmlInit_v2, ())                                                 \
  X(nvmlShutdown, ())                                                \
  X(nvmlDeviceGetCount_v2, (unsigned* count))                        \
  X(nvmlDeviceGetHandleByIndex_v2, (unsigned index, Device* device)) \
  X(nvmlDeviceGetUUID, (Device device, char* text, unsigned bytes))
#define RC_NVML_OPTIONAL_FUNCTIONS(X)                                            \
  X(nvmlSystemGetDriverVersion, (char* text, unsigned bytes))                    \
  X(nvmlDeviceGetName, (Device device, char* text, unsigned bytes))              \
  X(nvmlDeviceGetPciInfo_v3, (Device device, Pci * pci))                         \
  X(nvmlDeviceGetBAR1MemoryInfo, (Device device, Bar1 * bar1))                   \
  X(nvmlDeviceGetMemoryInfo, (Device device, Memory * memory))                   \
  X(nvmlDeviceGetComputeMode, (Device device, unsigned* mode))                   \
  X(nvmlDeviceGetMigMode, (Device device, unsigned* mode, unsigned* pending))    \
  X(nvmlDeviceGetCudaComputeCapability, (Device device, int* major, int* minor)) \
  X(nvmlDeviceGetNvLinkState, (Device device, unsigned link, unsigned* is_active))

struct Functions {
#define RC_NVML_MEMBER(name, parameters) int(*name) parameters = nullptr;
  RC_NVML_FUNCTIONS(RC_NVML_MEMBER)
  RC_NVML_OPTIONAL_FUNCTIONS(RC_NVML_MEMBER)
#undef RC_NVML_MEMBER
};

}  // namespace nvml

// A fact that the library does not tell is empty, 0 or -1.
struct NvmlGpu {
  std::string uuid;  // "GPU-5c1f..."
  std::string name;
  std::string address;  // as /sys writes it: "0000:83:00.0"
  std::optional<uint64_t> bar1_bytes;
  std::optional<uint64_t> bar1_free;
  uint64_t memory_bytes = 0;
  int capability = 0;  // 37 is 3.7
  int compute_mode = -1;
  bool is_mig = false;
  bool has_nvlink = false;
};

struct NvmlFacts {
  std::string problem;  // why the library tells nothing; "": it does
  std::string driver_version;
  std::vector<NvmlGpu> gpus;

  // The GPU with this UUID, or null. CUDA names a part of a GPU (MIG) by a UUID of its own, which
  // is not here.
  const NvmlGpu* find(std::string_view uuid) const;
};

// Opens the library (a name or a path), reads all GPUs, and ends its use. A machine without it has
// a `problem`, which is no error.
NvmlFacts read_nvml(const std::string& library);
NvmlFacts read_nvml(const nvml::Functions& functions);

}  // namespace rdmacoll::cuda
