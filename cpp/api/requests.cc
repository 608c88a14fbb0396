#include "api/requests.h"

#include <algorithm>
#include <memory>
#include <string_view>
#include <utility>

#include "api/device_requests.h"
#include "api/engine_handle.h"
#include "base/clock.h"
#include "base/text.h"

namespace rdmacoll {
namespace {

// Fills the fields that do not depend on the session.
Status translate(const rc_request& from, Request& to) {
  to.set = static_cast<uint32_t>(from.process_set);
  to.kind = static_cast<Kind>(from.kind);
  to.dtype = static_cast<Dtype>(from.dtype);
  to.op = static_cast<ReduceOp>(from.op);
  to.prescale = from.prescale;
  to.postscale = from.postscale;
  if (from.name != nullptr) to.name = from.name;
  to.iteration = from.iteration;
  if (from.manifest != nullptr) {
    const std::string_view text(from.manifest);
    const std::size_t end = text.find('\n');
    to.manifest = text.substr(0, end);
    if (end != std::string_view::npos) to.listing = text.substr(end + 1);
  }
  if (from.group != nullptr) to.group = from.group;
  if (from.splits != nullptr)
    to.splits.assign(from.splits, from.splits + std::max(from.n_splits, 0));
  to.tensors.resize(static_cast<std::size_t>(std::max(from.n_tensors, 0)));
  for (std::size_t i = 0; i < to.tensors.size(); ++i) {
    const rc_tensor& tensor = from.tensors[i];
    if (tensor.ndim < 0 || tensor.ndim > 8) {
      return {Code::invalid, cat("a tensor has ", tensor.ndim,
                                 " dimensions; at most 8 are supported: reshape it.")};
    }
    to.tensors[i].input = static_cast<const std::byte*>(tensor.input);
    to.tensors[i].output = static_cast<std::byte*>(tensor.output);
    to.tensors[i].dims.assign(tensor.dims, tensor.dims + tensor.ndim);
    if (tensor.label != nullptr) to.tensors[i].label = tensor.label;
  }
  if (from.allocate != nullptr) {
    to.allocate = [allocate = from.allocate,
                   context = from.context](const std::vector<int64_t>& dims) {
      return allocate(context, static_cast<int32_t>(dims.size()), dims.data());
    };
  }
  if (from.shared_result != nullptr) {
    if (to.kind != Kind::allreduce || from.allocate == nullptr) {
      return {Code::invalid, "`shared_result` is for an allreduce, and comes with `allocate`."};
    }
    to.shares_results = true;
    to.placed = [announce = from.shared_result, context = from.context](
                    std::size_t tensor, std::byte* memory, const std::shared_ptr<void>& hold) {
      announce(context, static_cast<int32_t>(tensor), memory, new std::shared_ptr<void>(hold),
               [](void* loan, void*) { delete static_cast<std::shared_ptr<void>*>(loan); });
    };
  }
  if (from.done != nullptr) {
    to.done = [done = from.done, context = from.context](const Status& status) {
      done(context, status.ok() ? nullptr : status.to_json().c_str());
    };
  }
  return {};
}

// Lets the engine allocate the results on the GPU, and announces them.
void give_gpu_results(const rc_request& from, Request& to) {
  const std::size_t tensors = to.tensors.size();
  const std::size_t results = to.kind == Kind::alltoall ? tensors + 1 : tensors;
  to.allocate = [give = from.gpu_result, context = from.context, results, tensors, dtype = to.dtype,
                 memory = to.result_memory, counts = std::move(to.allocate),
                 requested = std::size_t{0}](const std::vector<int64_t>& dims) mutable -> void* {
    if (requested++ % results >= tensors) return counts(dims);
    uint64_t bytes = size_of(dtype);
    for (const int64_t dim : dims) bytes *= static_cast<uint64_t>(dim);
    const std::shared_ptr<std::byte[]> made = memory(bytes);
    if (made == nullptr) return nullptr;
    give(context, static_cast<int32_t>(dims.size()), dims.data(), made.get(), new rc_result{made});
    return made.get();
  };
}

}  // namespace

Status request_from(Session& session, const rc_request& from, Request& to) {
  RC_RETURN_IF_ERROR(translate(from, to));
  RC_RETURN_IF_ERROR(session.resolve(JobRank(from.root), to));
  if (from.stream != 0) RC_RETURN_IF_ERROR(use_stream(session, from.stream, to));
  if (from.gpu_result != nullptr && to.result_memory) give_gpu_results(from, to);
  return {};
}

Status operation_from(Session& session, const rc_request& from, OperationRef& operation) {
  RC_RETURN_IF_ERROR(session.usable());
  Request request;
  RC_RETURN_IF_ERROR(request_from(session, from, request));
  operation = std::make_shared<Operation>(std::move(request));
  return {};
}

probe::Plan pair_plan_from(const rc_pair_plan& from) {
  return {.sizes = {from.bytes, from.bytes + from.n_bytes},
          .latency = (from.measures & RC_LATENCY) != 0,
          .exchange = (from.measures & RC_EXCHANGE) != 0,
          .bandwidth = (from.measures & RC_BANDWIDTH) != 0,
          .repeats = from.repeats,
          .burst = from_seconds(from.burst_s),
          .progress_timeout = from_seconds(from.timeout_s),
          .limit = from_seconds(from.limit_s)};
}

ScaleQuery scale_query_from(const rc_scale_query& from) {
  const auto link = [](const rc_link& it) {
    return Link{it.latency_us, it.overhead_us, it.gap_us, it.bytes_per_us};
  };
  return {.ranks = from.ranks,
          .node_ranks = from.node_ranks,
          .links = {.node = link(from.node),
                    .network = link(from.network),
                    .rack_nodes = from.rack_nodes,
                    .uplink_bytes_per_us = from.uplink_bytes_per_us,
                    .eager_bytes = usual_links(from.via_nic != 0).eager_bytes,
                    .via_nic = from.via_nic != 0,
                    .step_us = from.step_us,
                    .copy_bytes_per_us = from.copy_bytes_per_us,
                    .reduce_bytes_per_us = from.reduce_bytes_per_us},
          .algorithm = from.algorithm == nullptr ? "" : from.algorithm,
          .bytes = {from.bytes, from.bytes + from.operations},
          .ready_us = {from.ready_us, from.ready_us + from.operations},
          .transfers_max = from.transfers_max};
}

Status plan_query_from(const rc_plan_query& from, PlanQuery& to) {
  to = {.kind = static_cast<Kind>(from.kind),
        .ranks = from.ranks,
        .nodes = from.nodes,
        .bytes = from.bytes,
        .rank = from.rank,
        .algorithm = from.algorithm == nullptr ? "" : from.algorithm,
        .links = usual_links(from.via_nic != 0, from.gbit_per_s),
        .servers = from.servers};
  if (from.dtype != nullptr) {
    const std::optional<Dtype> dtype = dtype_from(from.dtype);
    if (!dtype) return {Code::invalid, cat(from.dtype, " is no dtype: give float32, for example.")};
    to.dtype = *dtype;
  }
  to.has_rate = from.gbit_per_s > 0;
  if (from.latency_us > 0) to.links.network.latency_us = from.latency_us;
  return {};
}

}  // namespace rdmacoll
