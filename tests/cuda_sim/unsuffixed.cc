// The plain names of functions that have a `_v2`. They are older functions with other types, so a
// call of one is a fault.

#include "cuda_sim/driver.h"
#include "cuda_sim/exports.h"

namespace rdmacoll::cuda_sim {

#define RC_SIM_OLD_FUNCTION(name)                                                        \
  extern "C" RC_SIM_EXPORT Result name() {                                               \
    return in_call(#name, Needs::nothing, [](Call& call) -> Result {                     \
      call.misuse("the plain name is an older function with other types. Use the _v2."); \
      return kInvalidValue;                                                              \
    });                                                                                  \
  }
RC_SIM_OLD_FUNCTION(cuCtxPopCurrent)
RC_SIM_OLD_FUNCTION(cuCtxPushCurrent)
RC_SIM_OLD_FUNCTION(cuDevicePrimaryCtxRelease)
RC_SIM_OLD_FUNCTION(cuDeviceTotalMem)
RC_SIM_OLD_FUNCTION(cuEventDestroy)
RC_SIM_OLD_FUNCTION(cuIpcOpenMemHandle)
RC_SIM_OLD_FUNCTION(cuMemAlloc)
RC_SIM_OLD_FUNCTION(cuMemFree)
RC_SIM_OLD_FUNCTION(cuMemGetAddressRange)
RC_SIM_OLD_FUNCTION(cuMemGetInfo)
RC_SIM_OLD_FUNCTION(cuMemHostGetDevicePointer)
RC_SIM_OLD_FUNCTION(cuMemHostRegister)
RC_SIM_OLD_FUNCTION(cuMemcpyDtoDAsync)
RC_SIM_OLD_FUNCTION(cuMemcpyDtoH)
RC_SIM_OLD_FUNCTION(cuMemcpyDtoHAsync)
RC_SIM_OLD_FUNCTION(cuMemcpyHtoD)
RC_SIM_OLD_FUNCTION(cuMemcpyHtoDAsync)
RC_SIM_OLD_FUNCTION(cuMemsetD32)
RC_SIM_OLD_FUNCTION(cuMemsetD8)
RC_SIM_OLD_FUNCTION(cuStreamBeginCapture)
RC_SIM_OLD_FUNCTION(cuStreamDestroy)
#undef RC_SIM_OLD_FUNCTION

}  // namespace rdmacoll::cuda_sim
