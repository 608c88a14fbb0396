#include "api/device_requests.h"

#include <optional>
#include <string>
#include <vector>

#include "base/small_range.h"
#include "base/text.h"

namespace rdmacoll {
namespace {

std::string place_of(const DeviceMemory& memory, Gpu gpu) {
  return gpu == kHost ? "host memory" : cat("memory of cuda:", memory.number_of(gpu));
}

std::string title(const TensorRef& tensor) {
  return tensor.label.empty() ? "a tensor" : cat("'", tensor.label, "'");
}

// Whether this rank's input is read. Callers may pass any other one.
bool reads_input(const Request& request, const Session& session) {
  const bool is_the_roots = request.kind == Kind::broadcast || request.kind == Kind::scatter;
  return !is_the_roots || request.root == session.rank_in(request.set);
}

// Finds the GPU of a tensor. `gpu` stays empty if the tensor has no memory yet.
Status find_gpu(DeviceMemory& memory, const TensorRef& tensor, bool reads_input,
                std::optional<Gpu>& gpu) {
  Gpu input = kHost, output = kHost;
  // The address of an empty tensor may be the end of other memory.
  const bool is_empty = tensor.elements() == 0;
  const bool has_input = reads_input && tensor.input != nullptr && !is_empty;
  const bool has_output =
      tensor.output != nullptr && !is_empty && !(has_input && tensor.output == tensor.input);
  if (has_input) RC_RETURN_IF_ERROR(memory.find(tensor.input, input));
  if (has_output) RC_RETURN_IF_ERROR(memory.find(tensor.output, output));
  if (has_input && has_output && input != output) {
    return {Code::invalid,
            cat(title(tensor), " has its input in ", place_of(memory, input), " and its output in ",
                place_of(memory, output), ": give both on the same device.")};
  }
  if (has_input) gpu = input;
  if (has_output) gpu = output;
  return {};
}

// Finds the GPU of each tensor. Empty ones go with the others.
Status find_gpus(DeviceMemory& memory, uint64_t stream, bool reads_input, Request& request) {
  std::vector<TensorRef*> empty;
  std::optional<Gpu> first;
  for (TensorRef& tensor : request.tensors) {
    std::optional<Gpu> gpu;
    RC_RETURN_IF_ERROR(find_gpu(memory, tensor, reads_input, gpu));
    if (!gpu) {
      empty.push_back(&tensor);
      continue;
    }
    tensor.gpu = *gpu;
    if (!first) first = gpu;
  }
  if (empty.empty()) return {};
  if (!first) RC_RETURN_IF_ERROR(memory.find_stream(stream, first.emplace()));
  for (TensorRef* tensor : empty) tensor->gpu = *first;
  return {};
}

// Results that the engine makes lie where the tensors do.
Status place_results(DeviceMemory& memory, Request& request) {
  if (request.tensors.empty()) return {};
  const Gpu gpu = request.tensors.front().gpu;
  const bool makes_result = is_known(request.kind) && row_of(request.kind).makes_result;
  for (const TensorRef& tensor : request.tensors) {
    if (!makes_result || (tensor.gpu != kHost && tensor.gpu == gpu)) continue;
    if (tensor.gpu == kHost) {
      return {Code::invalid, cat(title(tensor), " is in managed or host memory, and results of ",
                                 name_of(request.kind),
                                 " would be in memory of a GPU: copy it to the GPU first.")};
    }
    return {Code::invalid, cat(title(tensor), " is in ", place_of(memory, tensor.gpu),
                               ", and the first tensor in ", place_of(memory, gpu),
                               ": make a call for each GPU.")};
  }
  if (gpu == kHost) return {};
  request.result_memory = [&memory, gpu](uint64_t bytes) { return memory.allocate(gpu, bytes); };
  return {};
}

// Whether the caller can do without complete results. A callback has promised them, and the host
// may read memory that it shares with a GPU.
bool may_end_early(const Request& request) {
  const auto is_on_host = [](const TensorRef& tensor) { return tensor.gpu == kHost; };
  return !request.done && !request.allocate && !is_any_of(request.tensors, is_on_host);
}

// Streams 1 and 2 exist on each GPU, so the memory tells which one it is.
Status note_order(DeviceMemory& memory, uint64_t stream, Request& request) {
  Gpu gpu = kHost;
  for (const TensorRef& tensor : request.tensors) {
    if (gpu == kHost) gpu = tensor.gpu;
  }
  if (gpu == kHost) RC_RETURN_IF_ERROR(memory.find_stream(stream, gpu));
  RC_RETURN_IF_ERROR(memory.order(stream, gpu, request.order));
  request.caller_stream = may_end_early(request) ? request.order : nullptr;
  return {};
}

}  // namespace

Status use_stream(Session& session, uint64_t stream, Request& request) {
  DeviceMemory* memory = nullptr;
  RC_RETURN_IF_ERROR(session.device_memory(memory));
  return use_stream(*memory, stream, reads_input(request, session), request);
}

Status use_stream(DeviceMemory& memory, uint64_t stream, bool reads_input, Request& request) {
  if (request.shares_results) {
    return {Code::invalid, "results in memory of a GPU are not shared: leave `shared_result` out."};
  }
  RC_RETURN_IF_ERROR(find_gpus(memory, stream, reads_input, request));
  RC_RETURN_IF_ERROR(place_results(memory, request));
  return note_order(memory, stream, request);
}

Status renew_order(Session& session, uint64_t stream, Request& request) {
  DeviceMemory* memory = nullptr;
  RC_RETURN_IF_ERROR(session.device_memory(memory));
  return note_order(*memory, stream, request);
}

bool may_be_pinned(const Request& request, const TensorRef& tensor) {
  return tensor.gpu == kHost && request.order == nullptr;
}

}  // namespace rdmacoll
