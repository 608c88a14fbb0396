// The exported functions, and what processes that share GPU memory agree on.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>

#include "cuda/driver_api.h"

#define RC_SIM_EXPORT __attribute__((visibility("default")))

namespace rdmacoll::cuda_sim {

using namespace cuda;  // the exported functions have the types of the driver's mirror

extern "C" {
#define RC_SIM_DECLARE(name, parameters) RC_SIM_EXPORT Result name parameters;
RC_CUDA_FUNCTIONS(RC_SIM_DECLARE)
RC_CUDA_OPTIONAL_FUNCTIONS(RC_SIM_DECLARE)
#undef RC_SIM_DECLARE

// Functions that the engine does not use, for libraries and programs beside it.
RC_SIM_EXPORT Result cuCtxSetCurrent(ContextHandle context);
RC_SIM_EXPORT Result cuCtxSynchronize();
RC_SIM_EXPORT Result cuMemAllocManaged(Address* address, std::size_t bytes, unsigned flags);
RC_SIM_EXPORT Result cuMemAllocAsync(Address* address, std::size_t bytes, StreamHandle stream);
RC_SIM_EXPORT Result cuMemFreeAsync(Address address, StreamHandle stream);
RC_SIM_EXPORT Result cuMemcpyHtoD_v2(Address to, const void* from, std::size_t bytes);
RC_SIM_EXPORT Result cuMemcpyDtoH_v2(void* to, Address from, std::size_t bytes);
RC_SIM_EXPORT Result cuMemsetD8_v2(Address to, unsigned char value, std::size_t bytes);
RC_SIM_EXPORT Result cuMemsetD32_v2(Address to, unsigned value, std::size_t words);
RC_SIM_EXPORT Result cuMemGetInfo_v2(std::size_t* free_bytes, std::size_t* bytes);
RC_SIM_EXPORT Result cuStreamBeginCapture_v2(StreamHandle stream, int mode);
RC_SIM_EXPORT Result cuStreamEndCapture(StreamHandle stream, void** graph);
}

}  // namespace rdmacoll::cuda_sim
