#include "tensorflow/kernel.h"

#include <algorithm>
#include <bit>
#include <string_view>
#include <utility>

#include "tensorflow/attachment.h"
#include "tensorflow/attributes.h"
#include "tensorflow/error_text.h"
#include "tensorflow/gpu_kernels.h"
#include "tensorflow/waiting.h"

namespace rdmacoll::tensorflow {
namespace {

constexpr int kDimsMax = 8;  // rc_tensor::dims

// From this size on, the engine chooses the memory of a sum's outputs, which the node's ranks
// share. For smaller sums the messages cost more than copies.
constexpr std::size_t kPlacedBytesMin = 256 << 10;

// Up to this size, the submitting thread drives the engine itself. The main costs of a small
// collective are the wake-ups of the engine's thread and of one of TensorFlow's threads.
constexpr std::size_t kDrivenBytesMax = 64 << 10;

// Returns the message of a status without the parts that set_error() adds. `kind`: its class.
std::string reason_of(TF_Status* status, std::string_view& kind) {
  constexpr std::string_view kClass = "ConfigError: ";
  std::string text = TF_Message(status);
  const bool is_ours = text.starts_with(kClass);
  kind = is_ours ? "ConfigError" : "RdmacollError";
  if (!is_ours) return text;
  text.resize(std::min(text.size(), text.find(" [rdmacoll ")));
  return text.substr(kClass.size());
}

}  // namespace

void* Kernel::create_kernel(TF_OpKernelConstruction* construction, rc_kind kind, bool is_on_gpu) {
  const OwnedStatus status(TF_NewStatus());
  std::unique_ptr<Kernel> kernel(new Kernel(kind, is_on_gpu));
  kernel->read_attributes(construction, status.get());
  if (TF_GetCode(status.get()) == TF_OK) {
    kernel->find_call_path(construction);
    return kernel.release();
  }
  TF_OpKernelConstruction_Failure(construction, status.get());
  return nullptr;
}

void Kernel::destroy(void* kernel) { delete static_cast<Kernel*>(kernel); }

Kernel::~Kernel() {
  if (copies_ != nullptr) copies_->withdraw(node_);
}

void Kernel::read_attributes(TF_OpKernelConstruction* construction, TF_Status* status) {
  name_ = attribute_string(construction, "tensor_name", status);
  process_set_ = static_cast<int32_t>(attribute_int(construction, "process_set", status));
  if (kind_ == RC_BARRIER) return;
  if (TF_GetCode(status) == TF_OK) {
    TF_OpKernelConstruction_GetAttrType(construction, "T", &type_, status);
  }
  dtype_ = dtype_of(type_);
  labels_ = attribute_strings(construction, "labels", status);
  if (kind_ == RC_BROADCAST || kind_ == RC_REDUCE || kind_ == RC_GATHER || kind_ == RC_SCATTER) {
    root_ = static_cast<int32_t>(attribute_int(construction, "root_rank", status));
  }
  if (kind_ == RC_ALLREDUCE || kind_ == RC_REDUCESCATTER || kind_ == RC_REDUCE) {
    reduce_op_ = static_cast<int32_t>(attribute_int(construction, "op", status));
    // TensorFlow's float attributes have 32 bits, so an integer attribute carries the bits of a
    // double.
    prescale_ = std::bit_cast<double>(attribute_int(construction, "prescale_bits", status));
    postscale_ = std::bit_cast<double>(attribute_int(construction, "postscale_bits", status));
  }
  const bool has_manifest = kind_ == RC_ALLREDUCE || kind_ == RC_BROADCAST;
  if (has_manifest) manifest_ = attribute_string(construction, "manifest", status);
  if (has_manifest || kind_ == RC_ALLGATHER || kind_ == RC_REDUCESCATTER) {
    group_ = attribute_string(construction, "group", status);
  }
  if (TF_GetCode(status) == TF_OK && dtype_ < 0) {
    TF_SetStatus(status, TF_INVALID_ARGUMENT, "rdmacoll: this dtype cannot be communicated");
  }
}

void Kernel::find_call_path(TF_OpKernelConstruction* construction) {
  if (name_.empty()) return;
  const TF_StringView node = TF_OpKernelConstruction_GetName(construction);
  node_.assign(node.data, node.len);
  path_ = call_path_of(node_);
  if (path_.is_in_nested_loops) frames_ = std::make_unique<Frames>(node_);
  copies_ = CopiesOfName::of(name_, process_set_).add(node_, path_.calls);
}

// Finds the name that distinguishes this copy from others, at its first run.
void Kernel::find_name() {
  name_of_copy_ = copies_->name_at(path_.calls);
  visits_ = &CopiesOfName::of(name_, process_set_).visits(name_of_copy_);
}

void Kernel::compute(void* self, TF_OpKernelContext* context, TF_AsyncOpKernelDoneCallback* done) {
  auto* kernel = static_cast<Kernel*>(self);
  Done finish(done);
  const OwnedStatus status(TF_NewStatus());
  if (is_evaluated_while_optimizing(context)) {
    if (kernel->copies_ != nullptr) kernel->copies_->withdraw(kernel->node_);
    kernel->copies_ = nullptr;  // otherwise its destructor would withdraw the kernel that runs
    TF_SetStatus(status.get(), TF_UNIMPLEMENTED,
                 "a collective has no value before the program runs");
    TF_OpKernelContext_Failure(context, status.get());
    return finish.run();
  }
  std::unique_ptr<Pending> pending = kernel->take_pending();
  pending->context = context;
  Pending* submitted = nullptr;
  std::string error;
  std::string refusal;
  std::string_view kind;
  {
    const Attachment::Use use = Attachment::instance().use();
    pending->api = use.api;
    pending->engine = use.engine;
    pending->attached = use.attached;
    if (kernel->collect(context, *pending, status.get())) {
      pending->done = std::move(finish);
      // From here on the callback may run at any moment.
      submitted = pending.release();
      submitted->round = Waiting::instance().begin();
      error = kernel->submit(*submitted);
    } else {
      refusal = reason_of(status.get(), kind);
      if (pending->api != nullptr) kernel->refuse(*pending, refusal);
    }
  }
  if (submitted == nullptr) {
    kernel->recycle(std::move(pending));
    fail(context, error_json(kind, refusal));
    return finish.run();
  }
  if (!error.empty()) on_done(submitted, error.c_str());
  leave(submitted);
}

bool Kernel::collect(TF_OpKernelContext* context, Pending& pending, TF_Status* status) {
  const bool has_splits = kind_ == RC_ALLTOALL || kind_ == RC_SCATTER;
  const auto inputs = static_cast<std::size_t>(TF_NumInputs(context)) - (has_splits ? 1 : 0);
  if (has_splits && !collect_splits(context, static_cast<int>(inputs), pending, status)) {
    return false;
  }
  if (is_on_gpu_ && !find_stream(context, pending, status)) return false;
  pending.requested = 0;
  pending.bytes = 0;
  pending.tensors.assign(inputs, {});
  pending.borrows.resize(inputs);
  for (std::size_t i = 0; i < inputs; ++i) {
    if (!collect_input(context, static_cast<int>(i), pending, status)) return false;
    if (i < labels_.size()) pending.tensors[i].label = labels_[i].c_str();
  }
  // Ranks must agree. Another rank may have this tensor on its GPU, so nobody shares then.
  pending.is_placed = kind_ == RC_ALLREDUCE && pending.bytes >= kPlacedBytesMin &&
                      !has_gpu_kernels() && is_one_node(topology_of(pending));
  if (pending.is_placed || makes_result()) return true;
  for (std::size_t i = 0; i < inputs; ++i) {
    if (!make_output(context, static_cast<int>(i), pending, status)) return false;
  }
  return true;
}

// A request without a stream would give addresses of a GPU to processors.
bool Kernel::find_stream(TF_OpKernelContext* context, Pending& pending, TF_Status* status) const {
  pending.stream = stream_of(context);
  if (pending.stream != 0) return true;
  set_error(status, error_json("ConfigError",
                               "TensorFlow has no CUDA stream for this op on a GPU: place the op "
                               "on the CPU."));
  return false;
}

bool Kernel::collect_splits(TF_OpKernelContext* context, int index, Pending& pending,
                            TF_Status* status) {
  TF_Tensor* input = nullptr;
  TF_GetInput(context, index, &input, status);
  if (TF_GetCode(status) != TF_OK) return false;
  const auto* numbers = static_cast<const int64_t*>(TF_TensorData(input));
  pending.splits.assign(numbers, numbers + TF_TensorByteSize(input) / sizeof(int64_t));
  TF_DeleteTensor(input);
  return true;
}

bool Kernel::collect_input(TF_OpKernelContext* context, int index, Pending& pending,
                           TF_Status* status) {
  rc_tensor& tensor = pending.tensors[index];
  TF_Tensor* input = nullptr;
  TF_GetInput(context, index, &input, status);
  if (TF_GetCode(status) != TF_OK) return false;
  tensor.ndim = TF_NumDims(input);
  for (int i = 0; i < tensor.ndim && i < kDimsMax; ++i) tensor.dims[i] = TF_Dim(input, i);
  const std::size_t bytes = TF_TensorByteSize(input);
  pending.bytes += bytes;
  const bool is_empty = bytes == 0;
  tensor.input = is_empty ? empty_memory : TF_TensorData(input);
  // Our reference is dropped before the output is requested. TensorFlow gives an input's memory to
  // the output only if there is no other reference. The context keeps the memory alive.
  TF_DeleteTensor(input);
  if (tensor.ndim > kDimsMax) {
    const std::string what = "a tensor has " + std::to_string(tensor.ndim) +
                             " dimensions; at most 8 are supported: reshape it.";
    set_error(status, error_json("ConfigError", what));
    return false;
  }
  return true;
}

// Sets the name and the iteration. Together they are equal on all ranks for one run of the node,
// and differ from any other run of the step. Returns "" or the error as JSON.
std::string Kernel::name_operation(TF_OpKernelContext* context, rc_request& request) {
  if (name_.empty()) return "";
  std::call_once(has_name_, &Kernel::find_name, this);
  request.name = name_of_copy_.c_str();
  const uint64_t frame = TF_GetFrameId(context);
  if (frame == kNoFrame) return "";
  if (frame != kRootFrame) {
    request.iteration = TF_GetIterId(context);
    if (path_.is_in_nested_loops) {
      const uint64_t iteration = static_cast<uint64_t>(request.iteration);
      const uint64_t outer = frames_->outer_iterations(frame);
      request.iteration = static_cast<int64_t>(outer + iteration * 0x9e3779b97f4a7c15);
    }
  }
  if (visits_->note(TF_StepId(context), frame, path_.is_in_nested_loops)) return "";
  return error_json("DuplicateNameError",
                    "'" + name_ +
                        "' ran twice in one step and nothing tells the two runs apart, so ranks "
                        "could take one for the other: give each collective a name of its own, and "
                        "have none in nested loops of TensorFlow 1's control flow.");
}

// Returns "" or the error as JSON.
std::string Kernel::submit(Pending& pending) {
  rc_request request{};
  request.kind = kind_;
  request.dtype = dtype_;
  request.op = reduce_op_;
  request.root = root_;
  request.prescale = prescale_;
  request.postscale = postscale_;
  if (const std::string refusal = name_operation(pending.context, request); !refusal.empty()) {
    return refusal;
  }
  request.process_set = process_set_;
  request.manifest = manifest_.empty() ? nullptr : manifest_.c_str();
  request.group = group_.empty() ? nullptr : group_.c_str();
  request.n_tensors = static_cast<int32_t>(pending.tensors.size());
  request.tensors = pending.tensors.data();
  if (makes_result()) request.allocate = &Kernel::on_allocate;
  if (makes_result() && is_on_gpu_) request.gpu_result = &Kernel::on_gpu_result;
  if (pending.is_placed) {
    request.allocate = &Kernel::on_own_output;
    request.shared_result = &Kernel::on_shared_result;
  }
  request.splits = pending.splits.empty() ? nullptr : pending.splits.data();
  request.n_splits = static_cast<int32_t>(pending.splits.size());
  request.done = &Kernel::on_done;
  request.context = &pending;
  request.stream = pending.stream;

  if (pending.api == nullptr) {
    return error_json("NotInitializedError", "rdmacoll is not running: call rdmacoll.init() first");
  }
  // If other operations are in flight, the engine's thread is awake already, and they may take
  // long. So may the work of a GPU before this operation.
  const bool drives =
      !is_on_gpu_ && pending.bytes <= kDrivenBytesMax && Waiting::instance().now() == 1;
  char* error = nullptr;
  const rc_operation_api& api = *pending.api->operation;
  const int refused = drives ? api.submit_and_drive(pending.engine, &request, &error)
                             : api.submit(pending.engine, &request, nullptr, &error);
  if (refused == 0) return "";
  std::string text =
      error != nullptr ? error : error_json("RdmacollError", "the engine refused the operation");
  if (error != nullptr) pending.api->text_free(error);
  return text;
}

// Tells the other ranks that this rank takes no part, so that later operations still match.
void Kernel::refuse(const Pending& pending, const std::string& reason) {
  rc_request request{};
  request.kind = kind_;
  request.process_set = process_set_;
  if (!name_operation(pending.context, request).empty()) return;
  pending.api->operation->refuse(pending.engine, &request, reason.c_str());
}

void Kernel::on_done(void* context, const char* error) {
  auto* pending = static_cast<Pending*>(context);
  Waiting::instance().end(pending->round);
  if (error == nullptr) give_results(*pending);
  pending->results.clear();
  if (!pending->failure.empty()) {
    fail(pending->context, error_json("RdmacollError", pending->failure));
  } else if (error != nullptr) {
    fail(pending->context, error);
  }
  leave(pending);
}

// Called by compute() and by the callback. The second call ends the op. The first must not, since
// compute() uses the engine, and may be driving it.
void Kernel::leave(Pending* pending) {
  if (!pending->one_has_left.exchange(true, std::memory_order_acq_rel)) return;
  Done done = std::move(pending->done);
  // run() may end the step and destroy this kernel, so the memory is recycled first.
  Kernel* const kernel = pending->kernel;
  kernel->recycle(std::unique_ptr<Pending>(pending));
  done.run();
}

std::unique_ptr<Kernel::Pending> Kernel::take_pending() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!idle_.empty()) {
      std::unique_ptr<Pending> pending = std::move(idle_.back());
      idle_.pop_back();
      return pending;
    }
  }
  auto pending = std::make_unique<Pending>();
  pending->kernel = this;
  return pending;
}

void Kernel::recycle(std::unique_ptr<Pending> pending) {
  pending->context = nullptr;
  pending->failure.clear();
  pending->one_has_left.store(false, std::memory_order_relaxed);
  const std::lock_guard<std::mutex> lock(mutex_);
  idle_.push_back(std::move(pending));
}

}  // namespace rdmacoll::tensorflow
