// Plays kernels on the CPU, with the memory of the fake driver.

#include <atomic>
#include <cstring>

#include "cuda_sim/driver.h"

namespace rdmacoll::cuda_sim {
namespace {

// Memory as a kernel of a context sees it: its own GPU's, that of enabled peers, and pinned memory.
class KernelMemory {
 public:
  KernelMemory(Driver& all, const Context& context) : all_(all), context_(context) {}

  std::byte* at(Address address, std::size_t bytes) {
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
  KernelMemory memory(all, *launch.context);
  if (launch.name == "empty") return true;
  if (launch.name != "write_word") {
    all.log.misuse("the fake driver knows no kernel " + launch.name + ".");
    return true;
  }
  Address address = 0;
  unsigned value = 0;
  std::memcpy(&address, launch.parameters.data(), sizeof address);
  std::memcpy(&value, launch.parameters.data() + sizeof address, sizeof value);
  std::byte* const word = memory.at(address, sizeof value);
  if (!word) return false;
  std::atomic_ref(*reinterpret_cast<unsigned*>(word)).store(value, std::memory_order_release);
  return true;
}

}  // namespace rdmacoll::cuda_sim
