// The memory of an op's results: TensorFlow's, the engine's, or an input's.
#include <cstddef>
#include <cstring>
#include <memory>

#include "tensorflow/attachment.h"
#include "tensorflow/attributes.h"
#include "tensorflow/kernel.h"

namespace rdmacoll::tensorflow {
namespace {

// Fresh memory from this size on comes from the system page by page, and returns there after the
// step. The allocator recycles smaller blocks.
constexpr std::size_t kBorrowedBytesMin = 64 << 10;

// Asking TensorFlow to reuse an input allocates fresh memory if the answer is no. After a "no" only
// one call of 16 asks again, since inputs may be reusable in a later step.
constexpr uint8_t kBorrowsInARow = 15;

// Memory of the engine under a tensor that TensorFlow owns.
struct Loan {
  void* context = nullptr;
  void (*release)(void* context, void* memory) = nullptr;

  static void end(void* memory, std::size_t, void* argument) {
    const std::unique_ptr<Loan> loan(static_cast<Loan*>(argument));
    loan->release(loan->context, memory);
  }
};

// Memory of a GPU under a tensor that TensorFlow owns.
struct GpuLoan {
  const rc_api* api = nullptr;
  uint64_t attached = 0;
  uint64_t stream = 0;
  rc_result* result = nullptr;

  // Work of the stream may still use the memory. Once the engine has ended, nobody uses it again.
  static void end(void*, std::size_t, void* argument) {
    const std::unique_ptr<GpuLoan> loan(static_cast<GpuLoan*>(argument));
    const Attachment::Use use = Attachment::instance().use();
    if (use.api != nullptr && use.attached == loan->attached) {
      use.api->engine->gpu_free(use.engine, loan->result, loan->stream);
    } else {
      loan->api->prepared->result_free(loan->result);
    }
  }
};

}  // namespace

// Makes an output with its input's shape.
bool Kernel::make_output(TF_OpKernelContext* context, int index, Pending& pending,
                         TF_Status* status) {
  rc_tensor& tensor = pending.tensors[index];
  const std::size_t bytes = bytes_of(tensor);
  if (kind_ == RC_REDUCE && topology_of(pending).rank != root_)
    return zero_output(context, index, tensor, bytes, status);

  // The size is that of this run, since shapes may be dynamic. A GPU's allocator caches memory
  // itself, so only memory of the host is borrowed.
  const bool is_large = bytes >= kBorrowedBytesMin && !is_on_gpu_;
  if (is_large && pending.borrows[index] > 0) {
    --pending.borrows[index];
    tensor.output = borrow_output(context, index, pending, bytes, status);
    if (TF_GetCode(status) != TF_OK) return false;
    if (tensor.output != nullptr) return true;
  }
  int forwarded = -1;
  TF_Tensor* output = TF_ForwardInputOrAllocateOutput(context, &index, 1, index, tensor.dims,
                                                      tensor.ndim, &forwarded, status);
  if (TF_GetCode(status) != TF_OK) return false;
  tensor.output = bytes == 0 ? empty_memory : TF_TensorData(output);
  TF_DeleteTensor(output);
  if (is_large) pending.borrows[index] = forwarded < 0 ? kBorrowsInARow : 0;
  return true;
}

std::size_t Kernel::bytes_of(const rc_tensor& tensor) const {
  std::size_t bytes = size_of_dtype(dtype_);
  for (int i = 0; i < tensor.ndim; ++i) bytes *= static_cast<std::size_t>(tensor.dims[i]);
  return bytes;
}

Kernel::Topology Kernel::topology_of(const Pending& pending) {
  int32_t t[6] = {0, 1, 0, 1, 0, 1};
  if (pending.api != nullptr) pending.api->engine->topology(pending.engine, t);
  return {t[0], t[1], t[2], t[3], t[4], t[5]};
}

// For ranks other than a reduction's root, since the engine gives them no result.
bool Kernel::zero_output(TF_OpKernelContext* context, int index, const rc_tensor& tensor,
                         std::size_t bytes, TF_Status* status) {
  TF_Tensor* output =
      TF_AllocateOutput(context, index, type_, tensor.dims, tensor.ndim, bytes, status);
  if (TF_GetCode(status) != TF_OK) return false;
  if (bytes > 0) std::memset(TF_TensorData(output), 0, bytes);
  TF_DeleteTensor(output);
  return true;
}

// Makes an output in the engine's own memory. Its pages exist already, and peers can read it in
// place. Returns null if there is none.
void* Kernel::borrow_output(TF_OpKernelContext* context, int index, const Pending& pending,
                            std::size_t bytes, TF_Status* status) {
  if (pending.api == nullptr) return nullptr;
  const rc_tensor& tensor = pending.tensors[index];
  auto loan = std::make_unique<Loan>();
  void* memory =
      pending.api->engine->memory_lend(pending.engine, bytes, &loan->context, &loan->release);
  if (memory == nullptr) return nullptr;
  TF_Tensor* output =
      TF_NewTensor(type_, tensor.dims, tensor.ndim, memory, bytes, &Loan::end, loan.release());
  TF_SetOutput(context, index, output, status);
  TF_DeleteTensor(output);
  return memory;
}

// All outputs are requested again if ranks turn out to have other numbers of rows.
std::size_t Kernel::result_index(Pending& pending) const {
  const std::size_t outputs = kind_ == RC_ALLTOALL ? 2 : pending.tensors.size();
  pending.results.resize(outputs);
  return pending.requested++ % outputs;
}

void Kernel::on_gpu_result(void* context, int32_t ndim, const int64_t* dims, void* memory,
                           rc_result* result) {
  auto* pending = static_cast<Pending*>(context);
  const Kernel& kernel = *pending->kernel;
  std::size_t bytes = size_of_dtype(kernel.dtype_);
  for (int32_t i = 0; i < ndim; ++i) bytes *= static_cast<std::size_t>(dims[i]);
  auto* const loan = new GpuLoan{pending->api, pending->attached, pending->stream, result};
  pending->results[kernel.result_index(*pending)].reset(
      TF_NewTensor(kernel.type_, dims, ndim, memory, bytes, &GpuLoan::end, loan));
}

void* Kernel::on_allocate(void* context, int32_t ndim, const int64_t* dims) {
  auto* pending = static_cast<Pending*>(context);
  const Kernel& kernel = *pending->kernel;
  const std::size_t index = kernel.result_index(*pending);
  const bool is_counts = kernel.kind_ == RC_ALLTOALL && index == 1;
  std::size_t bytes = is_counts ? sizeof(int64_t) : size_of_dtype(kernel.dtype_);
  for (int32_t i = 0; i < ndim; ++i) bytes *= static_cast<std::size_t>(dims[i]);
  const OwnedStatus status(TF_NewStatus());
  TF_AllocatorAttributes attributes{
      offsetof(TF_AllocatorAttributes, on_host) + sizeof(attributes.on_host), 1};
  OwnedTensor& result = pending->results[index];
  result.reset(TF_AllocateTemp(pending->context, is_counts ? TF_INT64 : kernel.type_, dims, ndim,
                               &attributes, status.get()));
  if (TF_GetCode(status.get()) != TF_OK) {
    pending->failure = TF_Message(status.get());
    return nullptr;
  }
  return bytes == 0 ? empty_memory : TF_TensorData(result.get());
}

// Called if the ranks do not share the sum's memory.
void* Kernel::on_own_output(void* context, int32_t, const int64_t*) {
  auto* pending = static_cast<Pending*>(context);
  const auto index = static_cast<int>(pending->requested++);
  const OwnedStatus status(TF_NewStatus());
  if (pending->kernel->make_output(pending->context, index, *pending, status.get())) {
    return pending->tensors[index].output;
  }
  pending->failure = TF_Message(status.get());
  return nullptr;
}

void Kernel::on_shared_result(void* context, int32_t index, void* memory, void* loan,
                              void (*release)(void*, void*)) {
  auto* pending = static_cast<Pending*>(context);
  const rc_tensor& tensor = pending->tensors[index];
  pending->results.resize(pending->tensors.size());
  pending->results[index].reset(TF_NewTensor(pending->kernel->type_, tensor.dims, tensor.ndim,
                                             memory, pending->kernel->bytes_of(tensor), &Loan::end,
                                             new Loan{loan, release}));
}

void Kernel::give_results(Pending& pending) {
  for (std::size_t i = 0; i < pending.results.size() && pending.failure.empty(); ++i) {
    const OwnedStatus status(TF_NewStatus());
    TF_SetOutput(pending.context, static_cast<int>(i), pending.results[i].get(), status.get());
    if (TF_GetCode(status.get()) != TF_OK) pending.failure = TF_Message(status.get());
  }
}

}  // namespace rdmacoll::tensorflow
