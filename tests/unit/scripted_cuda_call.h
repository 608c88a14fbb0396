// For the functions of ScriptedCuda.
#pragma once

#include "unit/scripted_cuda.h"

namespace rdmacoll::cuda_test {

inline ScriptedCuda& the() { return *ScriptedCuda::now; }

#define CALLED(name)                       \
  const std::lock_guard lock(the().mutex); \
  if (const Result result = the().called(name); result != kSuccess) return result

// Those of modules and kernels.
void fill_kernels(Functions& functions);

}  // namespace rdmacoll::cuda_test
