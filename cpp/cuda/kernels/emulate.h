// Emulates the device kernels on a processor, from the source that a GPU runs. Tests and the fake
// CUDA driver use it. It is no part of the library.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace rdmacoll::cuda {

// Memory as the kernels address it.
class EmulatedMemory {
 public:
  virtual ~EmulatedMemory() = default;
  // Returns readable (or writable) memory that stands for `bytes` bytes at a device's address, at
  // equal alignment to 16 bytes. Null: a kernel that uses the address faults.
  virtual std::byte* at(uint64_t address, std::size_t bytes, bool is_written) = 0;
};

// Memory of this process, which has the addresses.
class OwnMemory final : public EmulatedMemory {
 public:
  std::byte* at(uint64_t address, std::size_t, bool) override {
    return reinterpret_cast<std::byte*>(static_cast<std::uintptr_t>(address));
  }
};

enum class Emulated { done, unknown_kernel, wrong_block, fault };

// Runs all threads of a launch, as cuLaunchKernel(name, blocks, threads, ..., parameters) does.
// Addresses of each row are translated once, before the first thread runs. A fault comes before
// anything is written.
Emulated emulate(std::string_view name, unsigned blocks, unsigned threads, void* const* parameters,
                 EmulatedMemory& memory);

}  // namespace rdmacoll::cuda
