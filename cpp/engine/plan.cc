#include "engine/plan.h"

#include <algorithm>
#include <new>
#include <numeric>

#include "base/text.h"

namespace rdmacoll {

Planner::Planner(const World& world, Transport& transport, MemoryPool& pool,
                 uint64_t one_copy_bytes)
    : world_(world), transport_(transport), pool_(pool), one_copy_bytes_(one_copy_bytes) {}

Shape Planner::shape_of(const Decided& decided) const {
  const Request& request = decided.operations.front()->request;
  return {world_.size(), world_.rank, request.kind == Kind::broadcast ? request.root : 0,
          request.kind == Kind::allreduce && request.prescale != 1.0};
}

bool Planner::connect(const Decided& decided) {
  const Algorithm algorithm = decided.decision.algorithm;
  const Shape shape = shape_of(decided);
  const auto [entry, is_new] = peers_.try_emplace({algorithm, shape.root});
  if (is_new) entry->second = peers_of(make_schedule(algorithm, shape));
  bool all = true;
  for (int peer : entry->second) {
    if (transport_.is_connected(peer)) continue;
    transport_.connect(peer);
    asked_.insert(peer);
    all = false;
  }
  return all;
}

Status Planner::prepare(Decided& decided, Batch& batch) {
  const Shape shape = shape_of(decided);
  const Request& request = decided.operations.front()->request;
  batch.sequence = decided.decision.sequence;
  RC_RETURN_IF_ERROR(lay_out(decided, shape, batch));
  // What is only moved is moved as bytes.
  const bool reduces = request.kind == Kind::allreduce;
  batch.dtype = reduces ? request.dtype : Dtype::uint8;
  batch.op = request.op == ReduceOp::average ? ReduceOp::sum : request.op;
  batch.divisor = reduces && request.op == ReduceOp::average ? world_.size() : 1.0;
  batch.prescale = request.prescale;
  batch.postscale = reduces ? request.postscale : 1.0;
  if (decided.decision.algorithm != Algorithm::none) {
    batch.program = &programs_.prepared(decided.decision.algorithm, shape, place(batch.layout));
  }
  batch.operations = std::move(decided.operations);
  return {};
}

Status Planner::lay_out(const Decided& decided, const Shape& shape, Batch& batch) const {
  const Request& first = decided.operations.front()->request;
  if (first.kind == Kind::barrier) return {};
  if (first.kind == Kind::allgather) {
    return lay_out_gathered(*decided.operations.front(), decided.decision, batch);
  }
  std::vector<Layout::Tensor> tensors;
  for (const OperationRef& operation : decided.operations) {
    const Request& request = operation->request;
    for (const TensorRef& tensor : request.tensors) {
      const std::byte* input = tensor.input;
      // Nobody but the root of a broadcast has an input: the others' is never read.
      if (request.kind == Kind::broadcast && request.root != world_.rank) input = tensor.output;
      tensors.push_back({input, tensor.output,
                         static_cast<uint64_t>(tensor.elements()) * size_of(request.dtype)});
    }
  }
  const bool whole = decided.decision.algorithm == Algorithm::recursive_doubling ||
                     decided.decision.algorithm == Algorithm::binomial_broadcast;
  batch.layout.assign_even(std::move(tensors), decided.decision.segment_bytes,
                           whole ? 1 : shape.ranks);
  return {};
}

Status Planner::lay_out_gathered(Operation& operation, const Decision& decision,
                                 Batch& batch) const {
  const Request& request = operation.request;
  const TensorRef& tensor = request.tensors.front();
  std::vector<int64_t> dims = tensor.dims;
  if (dims.empty()) dims = {1};
  uint64_t row = size_of(request.dtype);
  for (std::size_t i = 1; i < dims.size(); ++i) row *= static_cast<uint64_t>(dims[i]);
  dims.front() = std::accumulate(decision.firsts.begin(), decision.firsts.end(), int64_t{0});
  const uint64_t bytes = row * static_cast<uint64_t>(dims.front());

  void* output = nullptr;
  if (request.allocate) {
    output = request.allocate(dims);
  } else {
    operation.gathered.reset(new (std::nothrow) std::byte[bytes + 1]);  // an address if empty, too
    operation.gathered_bytes = bytes;
    output = operation.gathered.get();
  }
  if (output == nullptr) {
    return {Code::failed,
            cat("no memory of ", bytes_text(bytes), " for the result of ", operation.label(), ".")};
  }
  operation.gathered_dims = dims;
  std::vector<uint64_t> parts;
  for (int64_t first : decision.firsts) parts.push_back(row * static_cast<uint64_t>(first));
  batch.layout.assign_ragged({tensor.input, static_cast<std::byte*>(output), 0}, parts, world_.rank,
                             decision.segment_bytes);
  return {};
}

Placement Planner::place(const Layout& layout) const {
  Placement placement;
  bool foreign = layout.bytes() >= one_copy_bytes_;
  bool is_viewed = false;
  std::size_t pieces_max = SIZE_MAX;
  for (int peer = 0; peer < world_.size(); ++peer) {
    const bool connected = peer != world_.rank && transport_.is_connected(peer);
    const Reach reach = connected ? transport_.reach(peer) : Reach{};
    placement.views.push_back(reach.views);
    placement.devices.push_back(!reach.views && !reach.foreign_transfers);
    if (placement.devices.back()) foreign = false;
    if (!reach.views) continue;
    is_viewed = true;
    foreign = foreign && reach.foreign_views;
    pieces_max = std::min(pieces_max, reach.view_pieces_max);
  }
  const std::vector<Layout::Tensor>& tensors = layout.tensors();
  const bool few = tensors.size() <= pieces_max || layout.pieces_max() <= pieces_max;
  const auto all = [&](auto visible) {
    return few && std::all_of(tensors.begin(), tensors.end(), visible);
  };
  const auto visible = [&](const std::byte* data, uint64_t bytes) {
    return foreign || pool_.contains(data, bytes) ||
           (!is_viewed && transport_.is_pinned({const_cast<std::byte*>(data), bytes}));
  };
  placement.input_visible =
      all([&](const Layout::Tensor& tensor) { return visible(tensor.input, tensor.bytes); });
  placement.output_visible =
      all([&](const Layout::Tensor& tensor) { return visible(tensor.output, tensor.bytes); });
  return placement;
}

}  // namespace rdmacoll
