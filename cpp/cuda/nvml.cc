#include "cuda/nvml.h"

#include <array>

#include "base/runtime_library.h"
#include "base/text.h"
#include "cuda/topology.h"

namespace rdmacoll::cuda {
namespace {

constexpr int kNvmlSuccess = 0;  // NVML_SUCCESS
constexpr unsigned kLinksMax = 18;

// Calls a function that may be absent. Returns whether it succeeded.
template <typename Function, typename... Arguments>
bool ask(Function function, Arguments... arguments) {
  return function != nullptr && function(arguments...) == kNvmlSuccess;
}

template <typename Function, typename... Before>
std::string text_of(Function function, Before... before) {
  std::array<char, 256> text{};
  const bool is_told =
      ask(function, before..., text.data(), static_cast<unsigned>(text.size()) - 1);
  return is_told ? std::string(text.data()) : "";
}

bool has_nvlink(const nvml::Functions& call, nvml::Device device) {
  for (unsigned link = 0; link < kLinksMax; ++link) {
    unsigned is_active = 0;
    if (!ask(call.nvmlDeviceGetNvLinkState, device, link, &is_active)) return false;
    if (is_active != 0) return true;
  }
  return false;
}

NvmlGpu gpu_of(const nvml::Functions& call, nvml::Device device) {
  NvmlGpu gpu;
  gpu.uuid = text_of(call.nvmlDeviceGetUUID, device);
  gpu.name = text_of(call.nvmlDeviceGetName, device);
  nvml::Pci pci{};
  if (ask(call.nvmlDeviceGetPciInfo_v3, device, &pci)) {
    pci.address[sizeof pci.address - 1] = '\0';
    gpu.address = pci_address(pci.address);
  }
  nvml::Bar1 bar1{};
  if (ask(call.nvmlDeviceGetBAR1MemoryInfo, device, &bar1)) {
    gpu.bar1_bytes = bar1.total;
    gpu.bar1_free = bar1.free;
  }
  nvml::Memory memory{};
  if (ask(call.nvmlDeviceGetMemoryInfo, device, &memory)) gpu.memory_bytes = memory.total;
  int major = 0;
  int minor = 0;
  if (ask(call.nvmlDeviceGetCudaComputeCapability, device, &major, &minor)) {
    gpu.capability = major * 10 + minor;
  }
  unsigned mode = 0;
  if (ask(call.nvmlDeviceGetComputeMode, device, &mode)) gpu.compute_mode = static_cast<int>(mode);
  unsigned mig = 0;
  unsigned pending = 0;
  gpu.is_mig = ask(call.nvmlDeviceGetMigMode, device, &mig, &pending) && mig != 0;
  gpu.has_nvlink = has_nvlink(call, device);
  return gpu;
}

std::string load(const std::string& library, nvml::Functions& functions) {
  RuntimeLibrary opened(library);
  if (!opened.problem().empty()) return opened.problem();
#define RC_NVML_NEED(name, parameters) opened.need(#name, functions.name);
#define RC_NVML_TAKE(name, parameters) opened.take_if_there(#name, functions.name);
  RC_NVML_FUNCTIONS(RC_NVML_NEED)
  RC_NVML_OPTIONAL_FUNCTIONS(RC_NVML_TAKE)
#undef RC_NVML_NEED
#undef RC_NVML_TAKE
  const std::string& missing = opened.missing();
  return missing.empty() ? "" : cat(library, " lacks the function ", missing);
}

}  // namespace

const NvmlGpu* NvmlFacts::find(std::string_view uuid) const {
  for (const NvmlGpu& gpu : gpus) {
    if (!uuid.empty() && gpu.uuid == uuid) return &gpu;
  }
  return nullptr;
}

NvmlFacts read_nvml(const nvml::Functions& functions) {
  NvmlFacts facts;
  const int begun = functions.nvmlInit_v2();
  if (begun != kNvmlSuccess) {
    facts.problem = cat("nvmlInit_v2 failed with ", begun, ": is the driver loaded?");
    return facts;
  }
  facts.driver_version = text_of(functions.nvmlSystemGetDriverVersion);
  unsigned count = 0;
  if (functions.nvmlDeviceGetCount_v2(&count) != kNvmlSuccess) count = 0;
  for (unsigned index = 0; index < count; ++index) {
    nvml::Device device = nullptr;
    // A GPU that has fallen off the bus is left out.
    if (functions.nvmlDeviceGetHandleByIndex_v2(index, &device) != kNvmlSuccess) continue;
    facts.gpus.push_back(gpu_of(functions, device));
  }
  functions.nvmlShutdown();
  return facts;
}

NvmlFacts read_nvml(const std::string& library) {
  nvml::Functions functions;
  NvmlFacts facts;
  facts.problem = load(library, functions);
  return facts.problem.empty() ? read_nvml(functions) : facts;
}

}  // namespace rdmacoll::cuda
