#include <memory>
#include <string>

#include "cuda/kernel_library.h"
#include "cuda/kernels/emulate.h"
#include "unit/scripted_cuda_call.h"

namespace rdmacoll::cuda_test {
namespace {

// Memory of the test, as kernels address it.
class KernelMemory final : public EmulatedMemory {
 public:
  std::byte* at(uint64_t address, std::size_t bytes, bool /*is_written*/) override {
    if (address >= kPinnedOffset) {
      auto* const memory = reinterpret_cast<std::byte*>(address - kPinnedOffset);
      for (const auto& [begin, length] : the().pinned) {
        auto* const first = static_cast<std::byte*>(begin);
        if (memory >= first && memory + bytes <= first + length) return memory;
      }
      return nullptr;
    }
    auto found = the().memory.upper_bound(address);
    if (found == the().memory.begin()) return nullptr;
    --found;
    const bool is_inside = address - found->first + bytes <= found->second.bytes;
    return is_inside ? reinterpret_cast<std::byte*>(address) : nullptr;
  }
};

}  // namespace

void fill_kernels(Functions& f) {
  f.cuMemHostGetDevicePointer_v2 = [](Address* address, void* memory, unsigned) -> Result {
    CALLED("cuMemHostGetDevicePointer");
    if (!the().pinned.contains(memory)) return kInvalidValue;
    *address = reinterpret_cast<Address>(memory) + kPinnedOffset;
    return kSuccess;
  };
  // A module stands for its kernel.
  f.cuModuleLoadData = [](ModuleHandle* module, const void* image) -> Result {
    if (the().while_loading) the().while_loading();
    CALLED("cuModuleLoadData");
    for (const Kernel& kernel : kernels()) {
      if (kernel.ptx == image)
        *module = reinterpret_cast<ModuleHandle>(const_cast<Kernel*>(&kernel));
    }
    return kSuccess;
  };
  f.cuModuleGetFunction = [](FunctionHandle* function, ModuleHandle module, const char*) -> Result {
    *function = reinterpret_cast<FunctionHandle>(module);
    return kSuccess;
  };
  f.cuModuleUnload = [](ModuleHandle) -> Result {
    CALLED("cuModuleUnload");
    return kSuccess;
  };
  f.cuLaunchKernel = [](FunctionHandle function, unsigned blocks, unsigned, unsigned,
                        unsigned threads, unsigned, unsigned, unsigned, StreamHandle stream,
                        void** parameters, void**) -> Result {
    CALLED("cuLaunchKernel");
    const auto name = reinterpret_cast<const Kernel*>(function)->name;
    std::shared_ptr<void> copied;
    if (name == kernels()[static_cast<std::size_t>(write_word_kernel())].name) {
      copied = std::make_shared<WriteWordParameters>(
          *static_cast<const WriteWordParameters*>(parameters[0]));
    } else {
      copied =
          std::make_shared<ReduceParameters>(*static_cast<const ReduceParameters*>(parameters[0]));
    }
    return the().enqueue("cuLaunchKernel", stream, {std::string(name), [=] {
                                                      void* arguments[] = {copied.get()};
                                                      KernelMemory memory;
                                                      if (emulate(name, blocks, threads, arguments,
                                                                  memory) != Emulated::done) {
                                                        the().note("a kernel faults");
                                                      }
                                                      return true;
                                                    }});
  };
}

}  // namespace rdmacoll::cuda_test
