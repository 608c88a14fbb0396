// Gives librdmacoll_tf.so the CUDA stream of an op, which TensorFlow's C API does not. The layouts
// of TensorFlow's C++ classes differ between its versions. So `rdmacoll build-gpu-op` compiles this
// file for the installed one.
#include <cstdint>

#include "tensorflow/core/framework/op_kernel.h"
#include "xla/stream_executor/stream.h"

extern "C" {
// `context`: a TF_OpKernelContext, by which the C API means this class. Returns 0 without a GPU.
__attribute__((visibility("default"))) std::uint64_t rc_gpu_stream_of(void* context) {
  const tensorflow::DeviceContext* const device =
      static_cast<tensorflow::OpKernelContext*>(context)->op_device_context();
  const auto* const stream = device == nullptr ? nullptr : device->stream();
  if (stream == nullptr) return 0;
  return reinterpret_cast<std::uintptr_t>(stream->platform_specific_handle().stream);
}

// Names the TensorFlow and the rdmacoll that this library is built for.
__attribute__((visibility("default"))) const char* rc_gpu_stream_key(void) { return RC_KEY; }
}
