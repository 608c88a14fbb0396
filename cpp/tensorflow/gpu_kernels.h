// The kernels for tensors in memory of a GPU. TensorFlow's C API does not give the CUDA stream of
// an op. A small library does, which is built for the installed TensorFlow
// (rdmacoll/ops/gpu_stream.cc). Without it these kernels are not registered, and TensorFlow copies
// the tensors to the host.
#pragma once

#include <cstdint>

#include "tensorflow/tf_c_api.h"

namespace rdmacoll::tensorflow {

// Returns the CUDA stream on which an op's inputs are made, or 0 if there is none.
uint64_t stream_of(TF_OpKernelContext* context);
bool has_gpu_kernels();

}  // namespace rdmacoll::tensorflow

extern "C" {
// Returns the CUDA stream of a TF_OpKernelContext, or 0 if there is none.
typedef uint64_t (*rc_tf_stream_of)(void* context);

// Registers the kernels for GPUs at its first call, which must come before an op runs. The function
// must stay callable until the process ends. Returns NULL or an error message, which stays valid.
// Later calls return the same.
__attribute__((visibility("default"))) const char* rc_tf_register_gpu_kernels(
    rc_tf_stream_of stream_of);
}
