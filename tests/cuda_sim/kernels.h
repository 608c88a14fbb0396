// Modules of kernels. The fake driver reads the names and parameters of kernels from PTX, and
// emulates them by their C++ compilation.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "cuda/driver_api.h"

namespace rdmacoll::cuda_sim {

struct Context;
struct Driver;

struct KernelParameter {
  std::size_t bytes = 0;
  std::size_t offset = 0;  // in the parameters of a launch
};

struct Kernel {
  Context* context = nullptr;
  std::string name;
  std::vector<KernelParameter> parameters;
  std::size_t parameter_bytes = 0;
};

struct Module {
  Context* context = nullptr;
  std::vector<std::unique_ptr<Kernel>> kernels;
};

struct Launch {
  Context* context = nullptr;
  std::string name;
  unsigned blocks = 0;
  unsigned threads = 0;  // in a block
  std::vector<KernelParameter> layout;
  std::vector<std::byte> parameters;
};

// Runs a kernel to its end. Returns false after an access to memory that is not there.
bool play_launch(Driver& driver, Launch& launch);

}  // namespace rdmacoll::cuda_sim
