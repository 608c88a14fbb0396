#include "engine/plan.h"

#include <algorithm>
#include <new>
#include <numeric>

#include "base/text.h"

namespace rdmacoll {

Planner::Planner(const World& world, Transport& transport, MemoryPool& pool,
                 uint64_t one_copy_bytes)
    : world_(world),
      nodes_(world.nodes()),
      transport_(transport),
      pool_(pool),
      one_copy_bytes_(one_copy_bytes) {}

Shape Planner::shape_of(const Decided& decided) const {
  const Request& request = decided.operations.front()->request;
  return {world_.size(), world_.rank, request.kind == Kind::broadcast ? request.root : 0,
          request.kind == Kind::allreduce && request.prescale != 1.0, nodes_};
}

const Outline& Planner::outline_of(Algorithm algorithm, const Shape& shape) {
  const std::pair key(algorithm, shape.root);
  const auto found = outlines_.find(key);
  if (found != outlines_.end()) return found->second;
  return outlines_.emplace(key, make_schedule(algorithm, shape)).first->second;
}

// A prepared operation, alone again: nothing about it can have changed but who is connected.
bool Planner::is_known(const Decided& decided) const {
  const Operation& first = *decided.operations.front();
  return first.recipe_look == look_ && decided.operations.size() == 1 &&
         first.recipe->head.algorithm == decided.algorithm &&
         first.recipe->head.segment_bytes == decided.segment_bytes;
}

bool Planner::connect(const Decided& decided) {
  if (is_known(decided)) return true;
  bool all = true;
  for (int peer : outline_of(decided.algorithm, shape_of(decided)).peers) {
    if (transport_.is_connected(peer)) continue;
    transport_.connect(peer);
    asked_.insert(peer);
    all = false;
  }
  return all;
}

Status Planner::prepare(Decided& decided, Batch& batch) {
  batch.sequence = decided.sequence;
  if (is_known(decided)) {
    batch.recipe = decided.operations.front()->recipe;
    batch.operations = std::move(decided.operations);
    return {};
  }
  Recipe::Head head = head_of(decided);
  if (head.kind == Kind::allreduce || head.kind == Kind::broadcast) {
    list_tensors(decided);
    see(tensors_, head);
    RecipeRef& last = recipes_[index_of(tensors_)];
    const bool is_same =
        last != nullptr && last->head == head && last->layout.tensors() == tensors_;
    if (!is_same) last = even_recipe(head);
    batch.recipe = last;
    if (decided.operations.size() == 1) {
      decided.operations.front()->recipe = last;
      decided.operations.front()->recipe_look = look_;
    }
  } else {
    RC_RETURN_IF_ERROR(gathered_recipe(decided, head, batch.recipe));
  }
  batch.operations = std::move(decided.operations);
  return {};
}

// Callers use their arrays again: where the first one lies decides where the recipe is kept.
std::size_t Planner::index_of(std::span<const Layout::Tensor> tensors) {
  const auto lines = tensors.empty() ? 0 : reinterpret_cast<uintptr_t>(tensors.front().output) / 64;
  return (lines ^ lines / kRecipes ^ lines / (kRecipes * kRecipes)) % kRecipes;
}

Recipe::Head Planner::head_of(const Decided& decided) const {
  const Request& first = decided.operations.front()->request;
  const bool reduces = first.kind == Kind::allreduce;
  const bool averages = reduces && first.op == ReduceOp::average;
  return {.kind = first.kind,
          .algorithm = decided.algorithm,
          .segment_bytes = decided.segment_bytes,
          .shape = shape_of(decided),
          // What is only moved is moved as bytes.
          .dtype = reduces ? first.dtype : Dtype::uint8,
          .op = first.op == ReduceOp::average ? ReduceOp::sum : first.op,
          .divisor = averages ? world_.size() : 1.0,
          .prescale = first.prescale,
          .postscale = reduces ? first.postscale : 1.0};
}

void Planner::list_tensors(const Decided& decided) {
  tensors_.clear();
  for (const OperationRef& operation : decided.operations) {
    const Request& request = operation->request;
    for (const TensorRef& tensor : request.tensors) {
      const std::byte* input = tensor.input;
      // Nobody but the root of a broadcast has an input: the others' is never read.
      if (request.kind == Kind::broadcast && request.root != world_.rank) input = tensor.output;
      tensors_.push_back({input, tensor.output,
                          static_cast<uint64_t>(tensor.elements()) * size_of(request.dtype)});
    }
  }
}

// Of tensors_.
RecipeRef Planner::even_recipe(const Recipe::Head& head) {
  auto recipe = std::make_shared<Recipe>();
  recipe->head = head;
  recipe->layout.assign_even(tensors_, head.segment_bytes,
                             outline_of(head.algorithm, head.shape).parts);
  add_program(*recipe);
  return recipe;
}

// Of an allgather, whose result has memory of its own each time, or of a barrier.
Status Planner::gathered_recipe(const Decided& decided, const Recipe::Head& head, RecipeRef& made) {
  auto recipe = std::make_shared<Recipe>();
  recipe->head = head;
  if (head.kind == Kind::allgather) {
    RC_RETURN_IF_ERROR(lay_out_gathered(decided, recipe->layout));
    see(recipe->layout.tensors(), recipe->head);
  }
  add_program(*recipe);
  made = std::move(recipe);
  return {};
}

Status Planner::lay_out_gathered(const Decided& decided, Layout& layout) const {
  Operation& operation = *decided.operations.front();
  const Request& request = operation.request;
  const TensorRef& tensor = request.tensors.front();
  std::vector<int64_t> dims = tensor.dims;
  if (dims.empty()) dims = {1};
  uint64_t row = size_of(request.dtype);
  for (std::size_t i = 1; i < dims.size(); ++i) row *= static_cast<uint64_t>(dims[i]);
  dims.front() = std::accumulate(decided.firsts.begin(), decided.firsts.end(), int64_t{0});
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
  for (int64_t first : decided.firsts) parts.push_back(row * static_cast<uint64_t>(first));
  layout.assign_ragged({tensor.input, static_cast<std::byte*>(output), 0}, parts, world_.rank,
                       decided.segment_bytes);
  return {};
}

// ---- who sees what ----

void Planner::look_around() {
  around_ = {.is_known = true};
  for (int peer = 0; peer < world_.size(); ++peer) {
    const bool connected = peer != world_.rank && transport_.is_connected(peer);
    const Reach reach = connected ? transport_.reach(peer) : Reach{};
    around_.views.push_back(reach.views);
    around_.devices.push_back(!reach.views && !reach.foreign_transfers);
    if (around_.devices.back()) {
      around_.foreign = false;
      around_.device_eager_bytes = std::min(around_.device_eager_bytes, reach.eager_bytes);
    }
    if (!reach.views) continue;
    around_.is_viewed = true;
    around_.view_eager_bytes = std::min(around_.view_eager_bytes, reach.eager_bytes);
    around_.foreign = around_.foreign && reach.foreign_views;
    around_.pieces_max = std::min(around_.pieces_max, reach.view_pieces_max);
  }
}

void Planner::see(std::span<const Layout::Tensor> tensors, Recipe::Head& head) {
  if (!around_.is_known) look_around();
  uint64_t all_bytes = 0;
  for (const Layout::Tensor& tensor : tensors) all_bytes += tensor.bytes;
  const bool foreign = around_.foreign && all_bytes >= one_copy_bytes_;
  const auto visible = [&](const std::byte* data, uint64_t bytes) {
    return foreign || pool_.contains(data, bytes) ||
           (!around_.is_viewed && transport_.is_pinned({const_cast<std::byte*>(data), bytes}));
  };
  const auto all = [&](auto is_visible) {
    return std::all_of(tensors.begin(), tensors.end(), is_visible);
  };
  head.input_visible =
      all([&](const Layout::Tensor& tensor) { return visible(tensor.input, tensor.bytes); });
  head.output_visible =
      all([&](const Layout::Tensor& tensor) { return visible(tensor.output, tensor.bytes); });
}

void Planner::add_program(Recipe& recipe) {
  const Recipe::Head& head = recipe.head;
  if (head.algorithm == Algorithm::none) return;
  const Layout& layout = recipe.layout;
  const int parts_at_once = outline_of(head.algorithm, head.shape).parts_at_once;
  const bool few = layout.tensors().size() <= around_.pieces_max ||
                   layout.pieces_max(parts_at_once) <= around_.pieces_max;
  Placement placement{around_.views, few && head.input_visible, few && head.output_visible,
                      around_.devices};
  // What is copied on its way needs no memory that others see. Both ends of a transfer know its
  // size, and come to the same.
  const uint64_t bytes = layout.segment_bytes_max();
  if (bytes <= around_.view_eager_bytes) placement.views.assign(placement.views.size(), false);
  if (bytes <= around_.device_eager_bytes) placement.devices.clear();
  recipe.program = &programs_.prepared(head.algorithm, head.shape, placement);
}

}  // namespace rdmacoll
