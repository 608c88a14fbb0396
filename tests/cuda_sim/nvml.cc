// The part of NVML that tells of GPUs. It counts GPUs in an order of its own, and shows them all.

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "cuda_sim/driver.h"
#include "cuda_sim/exports.h"

namespace rdmacoll::cuda_sim {
namespace {

using NvmlDevice = struct DeviceOfNvml*;

constexpr int kNvmlSuccess = 0;
constexpr int kNvmlUninitialized = 1;
constexpr int kNvmlInvalidArgument = 2;
constexpr int kNvmlNotSupported = 3;
constexpr int kNvmlNotFound = 6;
constexpr int kNvmlInsufficientSize = 7;

struct NvmlBar1 {
  unsigned long long total, free, used;
};

struct NvmlPci {
  char short_address[16];
  unsigned domain, bus, device, device_id, subsystem_id;
  char address[32];
};

NvmlDevice nvml_handle(int place) {
  return reinterpret_cast<NvmlDevice>(static_cast<std::uintptr_t>(0x4e000000 + 16 * place));
}

// Runs the body with the machine, if NVML is initialized.
template <class Body>
int in_nvml(const char* name, Body&& body) {
  Call call(name, Needs::nothing);
  if (call.refusal() != kSuccess) return call.refusal();
  if (call.driver().nvml_count == 0) return kNvmlUninitialized;
  return body(call.driver());
}

// Runs the body with a GPU's place in the machine.
template <class Body>
int of_nvml_device(const char* name, NvmlDevice device, Body&& body) {
  return in_nvml(name, [&](Driver& all) -> int {
    for (int place = 0; place < static_cast<int>(all.machine->gpus.size()); ++place) {
      if (nvml_handle(place) == device) return body(all, place);
    }
    return kNvmlInvalidArgument;
  });
}

int give_text(const std::string& text, char* to, unsigned bytes) {
  if (text.size() + 1 > bytes) return kNvmlInsufficientSize;
  std::memcpy(to, text.c_str(), text.size() + 1);
  return kNvmlSuccess;
}

}  // namespace

extern "C" {

RC_SIM_EXPORT int nvmlInit_v2() {
  Call call("nvmlInit_v2", Needs::nothing);
  if (call.refusal() != kSuccess) return call.refusal();
  ++call.driver().nvml_count;
  return kNvmlSuccess;
}

RC_SIM_EXPORT int nvmlShutdown() {
  return in_nvml("nvmlShutdown", [](Driver& all) -> int {
    --all.nvml_count;
    return kNvmlSuccess;
  });
}

RC_SIM_EXPORT const char* nvmlErrorString(int result) {
  switch (result) {
    case kNvmlSuccess:
      return "Success";
    case kNvmlUninitialized:
      return "Uninitialized";
    case kNvmlInvalidArgument:
      return "Invalid Argument";
    case kNvmlNotSupported:
      return "Not Supported";
    case kNvmlNotFound:
      return "Not Found";
    case kNvmlInsufficientSize:
      return "Insufficient Size";
    default:
      return "Unknown Error";
  }
}

RC_SIM_EXPORT int nvmlSystemGetDriverVersion(char* text, unsigned bytes) {
  return in_nvml("nvmlSystemGetDriverVersion", [&](Driver& all) -> int {
    return give_text(all.machine->driver_version, text, bytes);
  });
}

RC_SIM_EXPORT int nvmlDeviceGetCount_v2(unsigned* count) {
  return in_nvml("nvmlDeviceGetCount_v2", [&](Driver& all) -> int {
    *count = static_cast<unsigned>(all.machine->gpus.size());
    return kNvmlSuccess;
  });
}

RC_SIM_EXPORT int nvmlDeviceGetHandleByIndex_v2(unsigned index, NvmlDevice* device) {
  return in_nvml("nvmlDeviceGetHandleByIndex_v2", [&](Driver& all) -> int {
    if (index >= all.machine->nvml_order.size()) return kNvmlInvalidArgument;
    *device = nvml_handle(all.machine->nvml_order[index]);
    return kNvmlSuccess;
  });
}

RC_SIM_EXPORT int nvmlDeviceGetHandleByUUID(const char* uuid, NvmlDevice* device) {
  return in_nvml("nvmlDeviceGetHandleByUUID", [&](Driver& all) -> int {
    for (int place = 0; place < static_cast<int>(all.machine->gpus.size()); ++place) {
      if (all.machine->gpus[place].uuid != uuid) continue;
      *device = nvml_handle(place);
      return kNvmlSuccess;
    }
    return kNvmlNotFound;
  });
}

RC_SIM_EXPORT int nvmlDeviceGetUUID(NvmlDevice device, char* uuid, unsigned bytes) {
  return of_nvml_device("nvmlDeviceGetUUID", device, [&](Driver& all, int place) -> int {
    return give_text(all.machine->gpus[place].uuid, uuid, bytes);
  });
}

RC_SIM_EXPORT int nvmlDeviceGetName(NvmlDevice device, char* name, unsigned bytes) {
  return of_nvml_device("nvmlDeviceGetName", device, [&](Driver& all, int place) -> int {
    return give_text(all.machine->gpus[place].name, name, bytes);
  });
}

RC_SIM_EXPORT int nvmlDeviceGetBAR1MemoryInfo(NvmlDevice device, NvmlBar1* bar1) {
  return of_nvml_device("nvmlDeviceGetBAR1MemoryInfo", device, [&](Driver& all, int place) -> int {
    const GpuFacts& gpu = all.machine->gpus[place];
    if (gpu.is_mig || gpu.bar1_bytes == 0) return kNvmlNotSupported;
    bar1->total = gpu.bar1_bytes;
    bar1->used = static_cast<unsigned long long>(all.bar1_taken[place]);
    bar1->free = bar1->total - bar1->used;
    return kNvmlSuccess;
  });
}

RC_SIM_EXPORT int nvmlDeviceGetPciInfo_v3(NvmlDevice device, NvmlPci* pci) {
  return of_nvml_device("nvmlDeviceGetPciInfo_v3", device, [&](Driver& all, int place) -> int {
    const PciPlace at = pci_place(all.machine->gpus[place].pci);
    *pci = {};
    pci->domain = at.domain;
    pci->bus = at.bus;
    pci->device = at.device;
    std::snprintf(pci->short_address, sizeof pci->short_address, "%04X:%02X:%02X.0",
                  at.domain & 0xffff, at.bus & 0xff, at.device & 0xff);
    std::snprintf(pci->address, sizeof pci->address, "%08X:%02X:%02X.0", at.domain, at.bus & 0xff,
                  at.device & 0xff);
    return kNvmlSuccess;
  });
}

RC_SIM_EXPORT int nvmlDeviceGetComputeMode(NvmlDevice device, unsigned* mode) {
  return of_nvml_device("nvmlDeviceGetComputeMode", device, [&](Driver& all, int place) -> int {
    const int found = all.machine->gpus[place].attribute(DeviceAttribute::compute_mode);
    *mode = static_cast<unsigned>(found);
    return kNvmlSuccess;
  });
}

RC_SIM_EXPORT int nvmlDeviceGetMigMode(NvmlDevice device, unsigned* now, unsigned* pending) {
  return of_nvml_device("nvmlDeviceGetMigMode", device, [&](Driver& all, int place) -> int {
    const GpuFacts& gpu = all.machine->gpus[place];
    if (gpu.attribute(DeviceAttribute::capability_major) < 8) return kNvmlNotSupported;
    *now = *pending = gpu.is_mig ? 1 : 0;
    return kNvmlSuccess;
  });
}

RC_SIM_EXPORT int nvmlDeviceGetCudaComputeCapability(NvmlDevice device, int* major, int* minor) {
  return of_nvml_device("nvmlDeviceGetCudaComputeCapability", device,
                        [&](Driver& all, int place) -> int {
                          const GpuFacts& gpu = all.machine->gpus[place];
                          *major = gpu.attribute(DeviceAttribute::capability_major);
                          *minor = gpu.attribute(DeviceAttribute::capability_minor);
                          return kNvmlSuccess;
                        });
}

}  // extern "C"
}  // namespace rdmacoll::cuda_sim
