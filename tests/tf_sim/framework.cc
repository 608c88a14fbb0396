// A library with the name of TensorFlow's own, which runs our kernels without TensorFlow. Its
// tensors may lie in memory of the fake GPU, which no processor can read. tests/tf_sim.py calls it.
#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tensorflow/tf_c_api.h"

struct TF_Status {
  TF_Code code = TF_OK;
  std::string text;
};
struct TF_Tensor {
  TF_DataType type;
  std::vector<int64_t> dims;
  void* data;
  size_t bytes;
  std::shared_ptr<void> memory = nullptr;  // tensors that a kernel has made
};
struct TF_KernelBuilder {
  std::string op, device;
  int type = 0;                        // 0: all
  std::set<std::string> on_host = {};  // arguments
  void* (*create)(TF_OpKernelConstruction*);
  void (*compute)(void*, TF_OpKernelContext*, TF_AsyncOpKernelDoneCallback*);
  void (*destroy)(void*);
};
struct TF_OpKernelConstruction {
  std::string name;
  TF_DataType type = TF_FLOAT;
  std::map<std::string, int64_t> numbers;
  std::map<std::string, std::string> texts;
  std::string error;
};
struct TF_OpKernelContext {
  struct Input {
    TF_Tensor tensor;
    bool may_be_reused;
  };
  std::vector<Input> inputs;
  std::map<int, TF_Tensor> outputs;
  uint64_t stream = 0;
  void* (*allocate)(uint64_t bytes) = nullptr;  // allocates memory of the GPU
  std::string error;
  std::mutex mutex;
  std::condition_variable changed;
  bool is_done = false;
};
struct TF_OpDefinitionBuilder {};
struct TF_ShapeHandle {};
struct TF_ShapeInferenceContext {};

namespace {

std::vector<TF_KernelBuilder>& builders() {
  static auto* const all = new std::vector<TF_KernelBuilder>;
  return *all;
}

// How many kernels for GPUs are registered before one is refused.
int gpu_kernels_before_refusal = -1;

void set(TF_Status* status, TF_Code code, std::string text) {
  status->code = code;
  status->text = std::move(text);
}

}  // namespace

#pragma GCC visibility push(default)
extern "C" {
TF_Status* TF_NewStatus() { return new TF_Status; }
void TF_DeleteStatus(TF_Status* status) { delete status; }
void TF_SetStatus(TF_Status* status, TF_Code code, const char* text) { set(status, code, text); }
TF_Code TF_GetCode(const TF_Status* status) { return status->code; }
const char* TF_Message(const TF_Status* status) { return status->text.c_str(); }

TF_Tensor* TF_NewTensor(TF_DataType type, const int64_t* dims, int ndim, void* data, size_t bytes,
                        void (*deallocator)(void* data, size_t bytes, void* argument),
                        void* argument) {
  const auto free = [=](void* memory) { deallocator(memory, bytes, argument); };
  return new TF_Tensor{type, {dims, dims + ndim}, data, bytes, {data, free}};
}
void TF_DeleteTensor(TF_Tensor* tensor) { delete tensor; }
int TF_NumDims(const TF_Tensor* tensor) { return static_cast<int>(tensor->dims.size()); }
int64_t TF_Dim(const TF_Tensor* tensor, int index) { return tensor->dims[index]; }
size_t TF_TensorByteSize(const TF_Tensor* tensor) { return tensor->bytes; }
void* TF_TensorData(const TF_Tensor* tensor) { return tensor->data; }

TF_OpDefinitionBuilder* TF_NewOpDefinitionBuilder(const char*) {
  return new TF_OpDefinitionBuilder;
}
void TF_RegisterOpDefinition(TF_OpDefinitionBuilder* builder, TF_Status* status) {
  delete builder;
  set(status, TF_OK, "");
}
void TF_OpDefinitionBuilderAddAttr(TF_OpDefinitionBuilder*, const char*) {}
void TF_OpDefinitionBuilderAddInput(TF_OpDefinitionBuilder*, const char*) {}
void TF_OpDefinitionBuilderAddOutput(TF_OpDefinitionBuilder*, const char*) {}
void TF_OpDefinitionBuilderSetIsStateful(TF_OpDefinitionBuilder*, bool) {}
void TF_OpDefinitionBuilderSetShapeInferenceFunction(TF_OpDefinitionBuilder*,
                                                     void (*)(TF_ShapeInferenceContext*,
                                                              TF_Status*)) {}

TF_KernelBuilder* TF_NewAsyncKernelBuilder(const char* op, const char* device,
                                           void* (*create)(TF_OpKernelConstruction*),
                                           void (*compute)(void*, TF_OpKernelContext*,
                                                           TF_AsyncOpKernelDoneCallback*),
                                           void (*destroy)(void*)) {
  return new TF_KernelBuilder{op, device, 0, {}, create, compute, destroy};
}
void TF_KernelBuilder_TypeConstraint(TF_KernelBuilder* builder, const char*, TF_DataType type,
                                     TF_Status* status) {
  builder->type = type;
  set(status, TF_OK, "");
}
void TF_KernelBuilder_HostMemory(TF_KernelBuilder* builder, const char* argument) {
  builder->on_host.insert(argument);
}
void TF_RegisterKernelBuilder(const char*, TF_KernelBuilder* builder, TF_Status* status) {
  const bool is_refused =
      builder->device == std::string("GPU") && gpu_kernels_before_refusal-- == 0;
  if (!is_refused) builders().push_back(*builder);
  delete builder;
  set(status, is_refused ? TF_INTERNAL : TF_OK, is_refused ? "the test refuses this kernel" : "");
}
void TF_RunAsyncOpKernelDoneCallback(TF_AsyncOpKernelDoneCallback* done) {
  (*reinterpret_cast<std::function<void()>*>(done))();
}

void TF_OpKernelConstruction_Failure(TF_OpKernelConstruction* construction, TF_Status* status) {
  construction->error = status->text;
}
TF_StringView TF_OpKernelConstruction_GetName(TF_OpKernelConstruction* construction) {
  return {construction->name.data(), construction->name.size()};
}
void TF_OpKernelConstruction_GetAttrSize(TF_OpKernelConstruction* construction, const char* name,
                                         int32_t* list_size, int32_t* total_size, TF_Status*) {
  *list_size = 0;  // `labels` has none
  *total_size = static_cast<int32_t>(construction->texts[name].size());
}
void TF_OpKernelConstruction_GetAttrType(TF_OpKernelConstruction* construction, const char*,
                                         TF_DataType* type, TF_Status*) {
  *type = construction->type;
}
void TF_OpKernelConstruction_GetAttrInt64(TF_OpKernelConstruction* construction, const char* name,
                                          int64_t* value, TF_Status*) {
  *value = construction->numbers[name];
}
void TF_OpKernelConstruction_GetAttrString(TF_OpKernelConstruction* construction, const char* name,
                                           char* text, size_t max_length, TF_Status*) {
  construction->texts[name].copy(text, max_length);
}

int TF_NumInputs(TF_OpKernelContext* context) { return static_cast<int>(context->inputs.size()); }
void TF_GetInput(TF_OpKernelContext* context, int index, TF_Tensor** tensor, TF_Status* status) {
  set(status, TF_OK, "");
  *tensor = new TF_Tensor(context->inputs[index].tensor);
}
TF_Tensor* TF_ForwardInputOrAllocateOutput(TF_OpKernelContext* context, const int* candidates, int,
                                           int index, const int64_t* dims, int ndim, int* forwarded,
                                           TF_Status* status) {
  set(status, TF_OK, "");
  const TF_OpKernelContext::Input& input = context->inputs[candidates[0]];
  TF_Tensor output = input.tensor;
  output.dims.assign(dims, dims + ndim);
  *forwarded = input.may_be_reused ? candidates[0] : -1;
  if (!input.may_be_reused && output.bytes > 0) output.data = context->allocate(output.bytes);
  context->outputs[index] = output;
  return new TF_Tensor(output);
}
// TensorFlow allocates memory of a GPU in the order of its stream, which a kernel does not follow
// any more when the engine wants memory.
TF_Tensor* TF_AllocateTemp(TF_OpKernelContext*, TF_DataType type, const int64_t* dims, int ndim,
                           TF_AllocatorAttributes* attributes, TF_Status* status) {
  if (attributes->on_host == 0) {
    std::fprintf(stderr, "tf_sim: memory of a GPU is allocated after the submission\n");
    std::abort();
  }
  set(status, TF_OK, "");
  size_t bytes = 8;
  for (int i = 0; i < ndim; ++i) bytes *= static_cast<size_t>(dims[i]);
  void* const data = std::calloc(bytes + 1, 1);
  return new TF_Tensor{type, {dims, dims + ndim}, data, bytes, {data, std::free}};
}
void TF_SetOutput(TF_OpKernelContext* context, int index, const TF_Tensor* tensor,
                  TF_Status* status) {
  set(status, TF_OK, "");
  context->outputs[index] = *tensor;
}
void TF_OpKernelContext_Failure(TF_OpKernelContext* context, TF_Status* status) {
  context->error = status->text;
}
int64_t TF_StepId(TF_OpKernelContext*) { return 4711; }
uint64_t TF_GetFrameId(TF_OpKernelContext*) { return ~uint64_t{0}; }
int64_t TF_GetIterId(TF_OpKernelContext*) { return 0; }

// The part for tests.
TF_OpKernelConstruction* tf_sim_construction(int type) {
  auto* construction = new TF_OpKernelConstruction;
  construction->type = static_cast<TF_DataType>(type);
  return construction;
}
void tf_sim_set_number(TF_OpKernelConstruction* construction, const char* name, int64_t value) {
  construction->numbers[name] = value;
}
void tf_sim_set_text(TF_OpKernelConstruction* construction, const char* name, const char* text) {
  construction->texts[name] = text;
}
void tf_sim_refuse_gpu_kernel(int kernels_before) { gpu_kernels_before_refusal = kernels_before; }
// Returns the registered kernel for an op, a device and a dtype, or null.
const TF_KernelBuilder* tf_sim_builder(const char* op, const char* device, int type) {
  for (const TF_KernelBuilder& one : builders()) {
    const bool fits = one.op == op && one.device == device && (one.type == 0 || one.type == type);
    if (fits) return new TF_KernelBuilder(one);
  }
  return nullptr;
}
// Makes the node's kernel and frees the construction. Returns null if the kernel refused it.
void* tf_sim_create(const TF_KernelBuilder* builder, TF_OpKernelConstruction* construction) {
  void* kernel = builder->create(construction);
  delete construction;
  return kernel;
}
void tf_sim_destroy(const TF_KernelBuilder* builder, void* kernel) { builder->destroy(kernel); }
TF_OpKernelContext* tf_sim_context(uint64_t stream, void* (*allocate)(uint64_t bytes)) {
  auto* context = new TF_OpKernelContext;
  context->stream = stream;
  context->allocate = allocate;
  return context;
}
void tf_sim_add_input(TF_OpKernelContext* context, int type, int ndim, const int64_t* dims,
                      void* data, uint64_t bytes, int may_be_reused) {
  context->inputs.push_back(
      {{static_cast<TF_DataType>(type), {dims, dims + ndim}, data, bytes}, may_be_reused != 0});
}
void tf_sim_compute(const TF_KernelBuilder* builder, void* kernel, TF_OpKernelContext* context) {
  std::function<void()> done = [context] {
    const std::lock_guard<std::mutex> lock(context->mutex);
    context->is_done = true;
    context->changed.notify_all();
  };
  builder->compute(kernel, context, reinterpret_cast<TF_AsyncOpKernelDoneCallback*>(&done));
}
// Returns 1 once the op has ended, or 0 after the time.
int tf_sim_wait(TF_OpKernelContext* context, double seconds) {
  std::unique_lock<std::mutex> lock(context->mutex);
  return context->changed.wait_for(lock, std::chrono::duration<double>(seconds),
                                   [context] { return context->is_done; })
             ? 1
             : 0;
}
const char* tf_sim_error(TF_OpKernelContext* context) { return context->error.c_str(); }
void* tf_sim_output(TF_OpKernelContext* context, int index) { return context->outputs[index].data; }
// Writes the dimensions and returns their number.
int tf_sim_output_dims(TF_OpKernelContext* context, int index, int64_t* dims) {
  const std::vector<int64_t>& found = context->outputs[index].dims;
  std::copy(found.begin(), found.end(), dims);
  return static_cast<int>(found.size());
}
int tf_sim_is_on_host(const TF_KernelBuilder* builder, const char* argument) {
  return builder->on_host.contains(argument) ? 1 : 0;
}
void tf_sim_free_context(TF_OpKernelContext* context) { delete context; }
// Stands for the library of `rdmacoll build-gpu-op`.
uint64_t tf_sim_stream_of(void* context) {
  return static_cast<TF_OpKernelContext*>(context)->stream;
}
}
#pragma GCC visibility pop
