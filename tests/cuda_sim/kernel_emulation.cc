// Emulates kernels on the CPU, from the source that a GPU runs, with the memory of the fake driver.

#include "cuda/kernels/emulate.h"
#include "cuda_sim/driver.h"

namespace rdmacoll::cuda_sim {
namespace {

// Memory as a kernel of a context sees it: its own GPU's, that of enabled peers, and pinned memory.
class KernelMemory final : public cuda::EmulatedMemory {
 public:
  KernelMemory(Driver& all, const Context& context) : all_(all), context_(context) {}

  std::byte* at(uint64_t address, std::size_t bytes, bool) override {
    int gpu = -1;
    std::byte* const found = all_.memory.translate(address, bytes, gpu);
    const bool is_allowed = gpu < 0 || gpu == context_.gpu || context_.peers.contains(gpu);
    return is_allowed ? found : nullptr;
  }

 private:
  Driver& all_;
  const Context& context_;
};

}  // namespace

bool play_launch(Driver& all, Launch& launch) {
  if (launch.name == "empty") return true;  // for measurements of launches
  KernelMemory memory(all, *launch.context);
  std::vector<void*> parameters;
  for (const KernelParameter& one : launch.layout) {
    parameters.push_back(launch.parameters.data() + one.offset);
  }
  switch (cuda::emulate(launch.name, launch.blocks, launch.threads, parameters.data(), memory)) {
    case cuda::Emulated::done:
      return true;
    case cuda::Emulated::fault:
      return false;
    case cuda::Emulated::unknown_kernel:
      all.log.misuse("the library has no kernel " + launch.name + ".");
      return true;
    case cuda::Emulated::wrong_block:
      all.log.misuse(launch.name + ": its blocks have not " + std::to_string(launch.threads) +
                     " threads.");
      return true;
  }
  return true;
}

}  // namespace rdmacoll::cuda_sim
