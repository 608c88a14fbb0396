#include "cuda_sim/kernels.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include "cuda_sim/driver.h"
#include "cuda_sim/exports.h"

namespace rdmacoll::cuda_sim {
namespace {

// Returns the text behind the word, without spaces before it. Empty if the word is not there.
std::string_view behind(std::string_view text, std::string_view word) {
  const std::size_t at = text.find(word);
  if (at == text.npos) return {};
  text.remove_prefix(at + word.size());
  text.remove_prefix(std::min(text.find_first_not_of(" \t\n"), text.size()));
  return text;
}

// Reads "7.4" as 74.
int version_in(std::string_view text) {
  const std::string copy(text.substr(0, 8));
  char* rest = nullptr;
  const long major = std::strtol(copy.c_str(), &rest, 10);
  return static_cast<int>(10 * major + (*rest == '.' ? std::strtol(rest + 1, nullptr, 10) : 0));
}

// Reads a declaration like ".param .u64 name" or ".param .align 8 .b8 name[944]".
KernelParameter parameter_in(std::string_view text, std::size_t offset) {
  std::size_t bytes = 0, alignment = 0;
  for (const char* kind : {".b", ".u", ".s", ".f"}) {
    const std::size_t at = text.find(kind);
    if (at == text.npos || text[at + 2] < '0' || text[at + 2] > '9') continue;
    bytes = static_cast<std::size_t>(std::atoi(std::string(text.substr(at + 2, 3)).c_str())) / 8;
    break;
  }
  alignment = bytes;
  if (const auto given = behind(text, ".align"); !given.empty()) {
    alignment = static_cast<std::size_t>(std::atoi(std::string(given.substr(0, 4)).c_str()));
  }
  if (const auto count = behind(text, "["); !count.empty()) {
    bytes *= static_cast<std::size_t>(std::atoll(std::string(count.substr(0, 12)).c_str()));
  }
  alignment = std::max<std::size_t>(alignment, 1);
  return {bytes, (offset + alignment - 1) / alignment * alignment};
}

std::unique_ptr<Kernel> kernel_in(std::string_view text) {
  auto kernel = std::make_unique<Kernel>();
  const std::size_t open = text.find('(');
  kernel->name = text.substr(0, text.find_first_of(" \t\n("));
  std::string_view list = text.substr(open + 1, text.find(')', open) - open - 1);
  while (!(list = behind(list, ".param")).empty()) {
    const std::size_t end = std::min(list.find(','), list.size());
    kernel->parameters.push_back(parameter_in(list.substr(0, end), kernel->parameter_bytes));
    kernel->parameter_bytes = kernel->parameters.back().offset + kernel->parameters.back().bytes;
  }
  return kernel;
}

Kernel* find_kernel(Driver& all, FunctionHandle handle) {
  for (const auto& [_, module] : all.modules) {
    for (const auto& kernel : module->kernels) {
      if (reinterpret_cast<FunctionHandle>(kernel.get()) == handle) return kernel.get();
    }
  }
  return nullptr;
}

// Copies the parameters of a launch, which the caller may change as soon as it returns.
std::vector<std::byte> taken_parameters(const Kernel& kernel, void** parameters) {
  std::vector<std::byte> taken(kernel.parameter_bytes);
  for (std::size_t i = 0; i < kernel.parameters.size(); ++i) {
    const KernelParameter& one = kernel.parameters[i];
    std::memcpy(taken.data() + one.offset, parameters[i], one.bytes);
  }
  return taken;
}

}  // namespace

extern "C" {

Result cuModuleLoadData(ModuleHandle* handle, const void* image) {
  return in_call("cuModuleLoadData", Needs::context, [&](Call& call) -> Result {
    Driver& all = call.driver();
    std::string_view text = static_cast<const char*>(image);
    const auto version = behind(text, ".version"), target = behind(text, ".target sm_");
    if (version.empty() || target.empty()) return kInvalidPtx;
    if (version_in(version) > all.machine->ptx_version) return kUnsupportedPtxVersion;
    const GpuFacts& facts = all.facts(call.context().gpu);
    const int capability = 10 * facts.attribute(DeviceAttribute::capability_major) +
                           facts.attribute(DeviceAttribute::capability_minor);
    if (std::atoi(std::string(target.substr(0, 3)).c_str()) > capability) return kNoBinaryForGpu;
    call.wait_for_kernels();
    auto module = std::make_unique<Module>();
    module->context = &call.context();
    while (!(text = behind(text, ".entry")).empty()) {
      module->kernels.push_back(kernel_in(text));
      module->kernels.back()->context = &call.context();
    }
    *handle = all.new_handle<ModuleHandle>();
    all.modules[*handle] = std::move(module);
    all.log.count("modules loaded");
    return kSuccess;
  });
}

Result cuModuleUnload(ModuleHandle module) {
  return in_call("cuModuleUnload", Needs::context, [&](Call& call) -> Result {
    call.wait_for_kernels();
    return call.driver().modules.erase(module) != 0 ? kSuccess : kInvalidHandle;
  });
}

Result cuModuleGetFunction(FunctionHandle* function, ModuleHandle module, const char* name) {
  return in_call("cuModuleGetFunction", Needs::context, [&](Call& call) -> Result {
    const auto found = call.driver().modules.find(module);
    if (found == call.driver().modules.end()) return kInvalidHandle;
    for (const auto& kernel : found->second->kernels) {
      if (kernel->name != name) continue;
      *function = reinterpret_cast<FunctionHandle>(kernel.get());
      return kSuccess;
    }
    return kNotFound;
  });
}

Result cuLaunchKernel(FunctionHandle function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                      unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,
                      StreamHandle stream, void** parameters, void** extra) {
  return in_call("cuLaunchKernel", Needs::context, [&](Call& call) -> Result {
    Driver& all = call.driver();
    const Kernel* const kernel = find_kernel(all, function);
    Stream* const own = call.stream(stream);
    if (!kernel || !own || kernel->context != &call.context()) return kInvalidHandle;
    if (grid_x == 0 || block_x == 0 || block_x > 1024 || extra) return kInvalidValue;
    if (grid_y != 1 || grid_z != 1 || block_y != 1 || block_z != 1 || shared_bytes != 0) {
      call.misuse("the fake driver emulates kernels of one dimension without shared memory.");
      return kNotSupported;
    }
    all.log.count("launches");
    all.log.count("launches of " + kernel->name);
    Launch launch = {.context = &call.context(),
                     .name = kernel->name,
                     .blocks = grid_x,
                     .threads = block_x,
                     .layout = kernel->parameters,
                     .parameters = taken_parameters(*kernel, parameters)};
    return call.submit(*own, {.run = [&all, launch = std::move(launch)]() mutable {
      return play_launch(all, launch);
    }});
  });
}

}  // extern "C"
}  // namespace rdmacoll::cuda_sim
