#include "tensorflow/gpu_kernels.h"

#include <atomic>
#include <initializer_list>
#include <string>

#include "tensorflow/attributes.h"
#include "tensorflow/kernel.h"

namespace rdmacoll::tensorflow {
namespace {

struct GpuOp {
  const char* name;
  void* (*create)(TF_OpKernelConstruction*);
  std::initializer_list<const char*> on_host;  // arguments
};
constexpr GpuOp kOps[] = {
    {"RdmacollAllreduce", &Kernel::create<RC_ALLREDUCE, true>, {}},
    {"RdmacollBroadcast", &Kernel::create<RC_BROADCAST, true>, {}},
    {"RdmacollAllgather", &Kernel::create<RC_ALLGATHER, true>, {}},
    {"RdmacollReducescatter", &Kernel::create<RC_REDUCESCATTER, true>, {}},
    {"RdmacollAlltoall", &Kernel::create<RC_ALLTOALL, true>, {"splits", "received_splits"}},
    {"RdmacollGather", &Kernel::create<RC_GATHER, true>, {}},
    {"RdmacollScatter", &Kernel::create<RC_SCATTER, true>, {"splits"}},
};
// The dtypes of gradients. TensorFlow keeps most integers in host memory.
constexpr TF_DataType kTypes[] = {TF_HALF,   TF_BFLOAT16,  TF_FLOAT,
                                  TF_DOUBLE, TF_COMPLEX64, TF_COMPLEX128};

std::atomic<rc_tf_stream_of> stream_function{nullptr};

void register_kernel(const GpuOp& op, TF_DataType type, TF_Status* status) {
  TF_KernelBuilder* const kernel =
      TF_NewAsyncKernelBuilder(op.name, "GPU", op.create, &Kernel::compute, &Kernel::destroy);
  for (const char* argument : op.on_host) TF_KernelBuilder_HostMemory(kernel, argument);
  TF_KernelBuilder_TypeConstraint(kernel, "T", type, status);
  if (TF_GetCode(status) == TF_OK) TF_RegisterKernelBuilder(op.name, kernel, status);
}

// Returns "" or the error.
std::string register_kernels() {
  const OwnedStatus status(TF_NewStatus());
  for (const GpuOp& op : kOps) {
    for (const TF_DataType type : kTypes) {
      register_kernel(op, type, status.get());
      if (TF_GetCode(status.get()) != TF_OK) return TF_Message(status.get());
    }
  }
  return "";
}

}  // namespace

uint64_t stream_of(TF_OpKernelContext* context) {
  const rc_tf_stream_of function = stream_function.load(std::memory_order_acquire);
  return function == nullptr ? 0 : function(context);
}

bool has_gpu_kernels() { return stream_function.load(std::memory_order_relaxed) != nullptr; }

}  // namespace rdmacoll::tensorflow

const char* rc_tf_register_gpu_kernels(rc_tf_stream_of stream_of) {
  static const auto* const problem = [stream_of] {
    rdmacoll::tensorflow::stream_function.store(stream_of, std::memory_order_release);
    return new std::string(rdmacoll::tensorflow::register_kernels());
  }();
  return problem->empty() ? nullptr : problem->c_str();
}
