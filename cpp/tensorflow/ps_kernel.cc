#include "tensorflow/ps_kernel.h"

#include <utility>

#include "tensorflow/attachment.h"
#include "tensorflow/error_text.h"
#include "tensorflow/waiting.h"

namespace rdmacoll::tensorflow {
namespace {

using Dims = std::vector<int64_t>;

// Memory of an input, valid until the op has ended.
struct Input {
  void* data = nullptr;
  std::size_t bytes = 0;
  Dims dims;
};

bool read_input(TF_OpKernelContext* context, int index, Input& input, TF_Status* status) {
  TF_Tensor* tensor = nullptr;
  TF_GetInput(context, index, &tensor, status);
  if (TF_GetCode(status) != TF_OK) return false;
  for (int i = 0; i < TF_NumDims(tensor); ++i) input.dims.push_back(TF_Dim(tensor, i));
  input.bytes = TF_TensorByteSize(tensor);
  input.data = input.bytes == 0 ? empty_memory : TF_TensorData(tensor);
  TF_DeleteTensor(tensor);
  return true;
}

}  // namespace

void* PsKernel::create_kernel(TF_OpKernelConstruction* construction, rc_ps_transfer transfer,
                              bool by_rows) {
  const OwnedStatus status(TF_NewStatus());
  std::unique_ptr<PsKernel> kernel(new PsKernel(transfer, by_rows));
  kernel->variables_ = attribute_strings(construction, "variables", status.get());
  if (TF_GetCode(status.get()) == TF_OK) {
    TF_OpKernelConstruction_GetAttrType(construction, "T", &kernel->type_, status.get());
  }
  if (TF_GetCode(status.get()) == TF_OK) return kernel.release();
  TF_OpKernelConstruction_Failure(construction, status.get());
  return nullptr;
}

void PsKernel::destroy(void* kernel) { delete static_cast<PsKernel*>(kernel); }

void PsKernel::compute(void* self, TF_OpKernelContext* context,
                       TF_AsyncOpKernelDoneCallback* done) {
  const auto* kernel = static_cast<PsKernel*>(self);
  Done finish(done);
  const OwnedStatus status(TF_NewStatus());
  Arguments arguments;
  if (is_evaluated_while_optimizing(context)) {
    TF_SetStatus(status.get(), TF_UNIMPLEMENTED,
                 "parameter servers have no value before the program runs");
  } else {
    kernel->collect(context, arguments, status.get());
  }
  if (TF_GetCode(status.get()) != TF_OK) {
    TF_OpKernelContext_Failure(context, status.get());
    return finish.run();
  }
  auto* const pending = new Pending;  // leave() deletes it
  pending->context = context;
  pending->done = std::move(finish);
  pending->round = Waiting::instance().begin();
  const std::string error = kernel->submit(arguments, *pending);
  if (!error.empty()) on_done(pending, error.c_str());
  leave(pending);
}

bool PsKernel::collect(TF_OpKernelContext* context, Arguments& arguments, TF_Status* status) const {
  arguments.tensors.resize(variables_.size());
  int index = 0;  // index of the next input
  for (std::size_t i = 0; i < variables_.size(); ++i) {
    arguments.tensors[i].variable = variables_[i].c_str();
    if (transfer_ == RC_PS_PULL) continue;
    if (!collect_gradient(context, index++, arguments.tensors[i], status)) return false;
  }
  Input rows;
  if (by_rows_) {
    if (!read_input(context, index++, rows, status)) return false;
    arguments.rows = static_cast<const int64_t*>(rows.data);
    arguments.n_rows = static_cast<int64_t>(rows.bytes / sizeof(int64_t));
  }
  if (transfer_ == RC_PS_PULL) return make_value(context, index, arguments.tensors[0], status);
  Input rate;
  if (!read_input(context, index, rate, status)) return false;
  if (rate.bytes == sizeof(double)) arguments.learning_rate = static_cast<const double*>(rate.data);
  if (rate.bytes <= sizeof(double)) return true;
  TF_SetStatus(status, TF_INVALID_ARGUMENT, "several learning rates for one push: give one");
  return false;
}

bool PsKernel::collect_gradient(TF_OpKernelContext* context, int index, rc_ps_tensor& tensor,
                                TF_Status* status) const {
  Input gradient;
  if (!read_input(context, index, gradient, status)) return false;
  tensor.gradient = gradient.data;
  tensor.bytes = gradient.bytes;
  if (transfer_ == RC_PS_PUSH) return true;
  int forwarded = -1;
  TF_Tensor* value =
      TF_ForwardInputOrAllocateOutput(context, &index, 1, index, gradient.dims.data(),
                                      static_cast<int>(gradient.dims.size()), &forwarded, status);
  if (TF_GetCode(status) != TF_OK) return false;
  tensor.value = gradient.bytes == 0 ? empty_memory : TF_TensorData(value);
  TF_DeleteTensor(value);
  return true;
}

bool PsKernel::make_value(TF_OpKernelContext* context, int dims_index, rc_ps_tensor& tensor,
                          TF_Status* status) const {
  Input dims;
  if (!read_input(context, dims_index, dims, status)) return false;
  const auto* numbers = static_cast<const int64_t*>(dims.data);
  const std::size_t count = dims.bytes / sizeof(int64_t);
  tensor.bytes = size_of_dtype(dtype_of(type_));
  for (std::size_t i = 0; i < count; ++i) tensor.bytes *= static_cast<std::size_t>(numbers[i]);
  TF_Tensor* value =
      TF_AllocateOutput(context, 0, type_, numbers, static_cast<int>(count), tensor.bytes, status);
  if (TF_GetCode(status) != TF_OK) return false;
  tensor.value = tensor.bytes == 0 ? empty_memory : TF_TensorData(value);
  TF_DeleteTensor(value);
  return true;
}

// Returns "" or the error as JSON.
std::string PsKernel::submit(const Arguments& arguments, Pending& pending) const {
  const rc_ps_request request{.transfer = transfer_,
                              .dtype = dtype_of(type_),
                              .n_tensors = static_cast<int32_t>(arguments.tensors.size()),
                              .tensors = arguments.tensors.data(),
                              .rows = arguments.rows,
                              .n_rows = arguments.n_rows,
                              .learning_rate = arguments.learning_rate,
                              .done = &PsKernel::on_done,
                              .context = &pending};
  const Attachment::Use use = Attachment::instance().use();
  if (use.ps == nullptr) {
    return error_json("NotInitializedError",
                      "there are no asynchronous parameter servers here: call "
                      "rdmacoll.init(mode='ps', sync=False)");
  }
  char* error = nullptr;
  if (use.api->ps->submit(use.ps, &request, &error) == 0) return "";
  std::string text = error;
  use.api->text_free(error);
  return text;
}

void PsKernel::on_done(void* context, const char* error) {
  auto* pending = static_cast<Pending*>(context);
  Waiting::instance().end(pending->round);
  if (error != nullptr) fail(pending->context, error);
  leave(pending);
}

// Called by compute() and by on_done(). The second call ends the op. The first must not, since
// compute() uses the session.
void PsKernel::leave(Pending* pending) {
  if (!pending->one_has_left.exchange(true, std::memory_order_acq_rel)) return;
  Done done = std::move(pending->done);
  delete pending;
  done.run();
}

}  // namespace rdmacoll::tensorflow
