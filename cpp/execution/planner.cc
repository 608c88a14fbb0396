#include "execution/planner.h"

#include <algorithm>
#include <cstring>
#include <new>

#include "base/text.h"
#include "collectives/roll_call.h"
#include "operation/scaled.h"

namespace rdmacoll {
namespace {

Status no_memory(const Operation& operation, uint64_t bytes) {
  return {Code::failed,
          cat("no memory of ", bytes_text(bytes), " for the result of ", operation.label(), ".")};
}

// Memory that the operation owns, with a valid address even without bytes. The numbers of rows that
// follow the results are for the host.
std::shared_ptr<std::byte[]> result_memory(const Request& request, std::size_t index,
                                           uint64_t bytes) {
  const bool is_rows = index >= request.tensors.size();
  if (request.result_memory && !is_rows) return request.result_memory(bytes);
  return std::shared_ptr<std::byte[]>(new (std::nothrow) std::byte[bytes + 1]);
}

// Finds memory for one result of the operation: the caller's, or memory of the operation.
Status make_result(Operation& operation, std::size_t index, std::vector<int64_t> dims,
                   uint64_t bytes, std::byte*& memory) {
  if (operation.results.size() <= index) operation.results.resize(index + 1);
  Operation::Result& result = operation.results[index];
  if (operation.is_prepared && result.memory != nullptr && result.dims == dims) {
    memory = result.memory.get();
    return {};
  }
  operation.state.has_moved_results = true;
  result = {{}, bytes, nullptr};
  if (operation.request.allocate) {
    memory = static_cast<std::byte*>(operation.request.allocate(dims));
  } else {
    result.memory = result_memory(operation.request, index, bytes);
    memory = result.memory.get();
  }
  result.dims = std::move(dims);
  return memory != nullptr ? Status() : no_memory(operation, bytes);
}

// Writes the second result of an alltoall: the number of rows received from each rank.
void tell(const RowTable& rows, std::byte* received) {
  for (const std::vector<int64_t>& numbers : rows) {
    if (numbers.empty()) continue;
    std::memcpy(received, &numbers.front(), sizeof numbers.front());
    received += sizeof numbers.front();
  }
}

const RowTable& rows_of(const CompleteDecision& decision) {
  static const RowTable kNone;
  return decision.rows == nullptr ? kNone : *decision.rows;
}

Status misfit(const Operation& operation) {
  return {Code::failed, cat("the decision about ", operation.label(),
                            " has row counts that differ from those that this rank has sent.")};
}

}  // namespace

Planner::Planner(const PlannerParts& parts)
    : world_(parts.world),
      members_(parts.members),
      servers_(parts.servers),
      nodes_(world_.nodes()),
      numa_nodes_(world_.numa_nodes()),
      transport_(parts.transport),
      pool_(parts.pool),
      gpu_work_(parts.gpu_work),
      cuda_ipc_(parts.cuda_ipc),
      gpu_direct_bytes_(parts.gpu_direct_bytes),
      segment_room_(parts.segment_room),
      programs_(members_) {}

Shape Planner::shape_of(const CompleteDecision& decision, bool shares_results) const {
  const Request& request = decision.operations.front()->request;
  const KindRow& kind = row_of(request.kind);
  return {world_.size(),
          world_.rank().value(),
          kind.has_root ? request.root.value() : 0,
          kind.reduces && request.prescale != 1.0 && !is_16_bit_float(request.dtype),
          nodes_,
          servers_,
          numa_nodes_,
          shares_results,
          has_wide_sums(request.kind, request.dtype, request.op)};
}

// In plan mode, a rank that has ended an operation must know that all ranks have begun it. The log
// guarantees this by readiness. Without the log it holds if each rank's data reaches every rank.
// Other schedules need a roll call.
bool Planner::calls_roll(const Operation& operation, Algorithm algorithm, bool is_planned) {
  return is_planned && (algorithm == Algorithm::none || row_of(operation.request.kind).has_root);
}

// Peers and parts do not depend on shared results or wide sums.
const Outline& Planner::outline_of(Algorithm algorithm, const Shape& shape, bool calls_roll) {
  const std::tuple key(algorithm, shape.root, calls_roll);
  const auto found = outlines_.find(key);
  if (found != outlines_.end()) return found->second;
  Schedule schedule = make_schedule(algorithm, shape);
  if (calls_roll) call_roll(schedule, shape);
  return outlines_.emplace(key, Outline(schedule, members_)).first->second;
}

// Whether a prepared operation runs alone again. Only the topology can have changed since.
bool Planner::is_known(const CompleteDecision& decision) const {
  return decision.operations.size() == 1 &&
         is_recipe_of(*decision.operations.front(), decision.movement, decision.rows,
                      decision.is_planned);
}

bool Planner::is_recipe_of(const Operation& operation, const Movement& movement,
                           const RowsRef& rows, bool is_planned) const {
  if (operation.caches.topology_version != topology_version_ || has_ready_gpus()) return false;
  const Recipe::Head& head = operation.caches.recipe->head;
  return !head.is_pinned_by_run && head.movement == movement &&
         head.calls_roll == calls_roll(operation, movement.algorithm, is_planned) &&
         operation.caches.recipe->rows == rows;
}

bool Planner::can_replay(const Operation& operation, const KeyedDecision& keyed) const {
  // An alltoall must write the received row counts again, and shared results have a new address.
  return operation.request.kind != Kind::alltoall && !operation.request.shares_results &&
         is_recipe_of(operation, keyed.decision.movement, keyed.rows, keyed.is_planned);
}

const std::vector<JobRank>& Planner::peers_of(const CompleteDecision& decision) {
  return outline_of(decision.movement.algorithm, shape_of(decision, false), calls_roll(decision))
      .peers;
}

bool Planner::connect(const CompleteDecision& decision) {
  note_ready_gpus();
  if (is_known(decision)) return true;
  bool all = true;
  for (JobRank peer : peers_of(decision)) {
    if (transport_.is_connected(peer.value())) continue;
    transport_.connect(peer.value());
    requested_.insert(peer);
    all = false;
  }
  return all && is_offered(decision);
}

Status Planner::prepare(CompleteDecision& decision, const SharedResult& result, Batch& batch) {
  batch.sequence = decision.sequence;
  if (is_known(decision)) {
    batch.recipe = decision.operations.front()->caches.recipe;
    // the caller may have overwritten the row counts
    if (batch.recipe->head.kind == Kind::alltoall) {
      tell(rows_of(decision), decision.operations.front()->results[1].memory.get());
    }
    batch.operations = std::move(decision.operations);
    return {};
  }
  Recipe::Head head = head_of(decision, result.is_shared());
  head.gpu = gpu_of_work(decision);
  if (!row_of(head.kind).makes_result) {
    for (const OperationRef& operation : decision.operations) {
      RC_RETURN_IF_ERROR(place_results(*operation, result));
    }
    list_tensors(decision);
    see(tensors_, head, batch);
    RecipeRef& last = recipes_[index_of(tensors_)];
    const bool is_same =
        last != nullptr && last->head == head && last->layout.tensors() == tensors_;
    if (!is_same) last = even_recipe(head);
    batch.recipe = last;
  } else {
    RC_RETURN_IF_ERROR(ragged_recipe(decision, head, batch));
  }
  if (decision.operations.size() == 1) {
    decision.operations.front()->caches.recipe = batch.recipe;
    decision.operations.front()->caches.topology_version = topology_version_;
  }
  batch.operations = std::move(decision.operations);
  return {};
}

// Callers reuse their arrays, so the address of the first output selects the recipe.
// Servers have no outputs and use the size.
std::size_t Planner::index_of(std::span<const Layout::Tensor> tensors) {
  uintptr_t lines = 0;
  if (!tensors.empty()) {
    const Layout::Tensor& first = tensors.front();
    lines =
        (first.output != nullptr ? reinterpret_cast<uintptr_t>(first.output) : first.bytes) / 64;
  }
  return (lines ^ lines / kRecipes ^ lines / (kRecipes * kRecipes)) % kRecipes;
}

Recipe::Head Planner::head_of(const CompleteDecision& decision, bool shares_results) const {
  const Request& first = decision.operations.front()->request;
  const bool reduces = row_of(first.kind).reduces;
  const bool averages = reduces && first.op == ReduceOp::average;
  const Scaled scaled = scaled_of(first);
  return {.kind = first.kind,
          .movement = decision.movement,
          .calls_roll = calls_roll(decision),
          .shape = shape_of(decision, shares_results),
          // kinds that do not reduce move bytes
          .dtype = reduces ? component_of(first.dtype) : Dtype::uint8,
          .op = scaled.op,
          .divisor = averages ? world_.size() : 1.0,
          .prescale = scaled.before,
          .postscale = reduces ? scaled.after : 1.0};
}

// Assigns outputs to operations whose callers let the engine choose them.
Status Planner::place_results(Operation& operation, const SharedResult& result) {
  Request& request = operation.request;
  if (result.is_shared()) {
    const ResultOffsets offsets(request.result_bytes());
    operation.state.results_hold = result.hold;
    for (std::size_t i = 0; i < request.tensors.size(); ++i) {
      const ResultBlock& block = result.block;
      request.tensors[i].output = block.shared + offsets.of(i);
      if (request.placed)
        request.placed(i, block.view + offsets.of(i), operation.state.results_hold);
    }
    return {};
  }
  for (TensorRef& tensor : request.tensors) {
    if (tensor.output != nullptr || !request.allocate) continue;  // a server has no outputs
    tensor.output = static_cast<std::byte*>(request.allocate(tensor.dims));
    if (tensor.output == nullptr) return no_memory(operation, tensor.bytes(request.dtype));
  }
  return {};
}

void Planner::list_tensors(const CompleteDecision& decision) {
  tensors_.clear();
  for (const OperationRef& operation : decision.operations) {
    const Request& request = operation->request;
    for (const TensorRef& tensor : request.tensors) {
      const std::byte* input = tensor.input;
      // Only the root of a broadcast has an input. The input of other ranks is never read.
      if (request.kind == Kind::broadcast && request.root != world_.rank()) input = tensor.output;
      tensors_.push_back({input, tensor.output, tensor.bytes(request.dtype), tensor.gpu});
    }
  }
}

// The recipe for the tensors in tensors_, whose parts have equal sizes on all ranks.
RecipeRef Planner::even_recipe(const Recipe::Head& head) {
  auto recipe = std::make_shared<Recipe>();
  recipe->head = head;
  recipe->layout.assign_even(tensors_, head.movement.segment_bytes, outline_of(head).parts);
  add_program(*recipe);
  return recipe;
}

// The recipe for operations with row counts. Their results have new memory in each run.
Status Planner::ragged_recipe(const CompleteDecision& decision, const Recipe::Head& head,
                              Batch& batch) {
  auto recipe = std::make_shared<Recipe>();
  recipe->head = head;
  recipe->rows = decision.rows;
  Cut cut;
  RC_RETURN_IF_ERROR(cut_rows(decision, cut));
  if (head.movement.algorithm != Algorithm::none) {
    // Parts that only pass through this rank have the maximum size.
    cut.rows.resize(static_cast<std::size_t>(outline_of(head).parts), {decision.most_rows});
  }
  RC_RETURN_IF_ERROR(lay_out_ragged(decision, cut, recipe->layout));
  see(recipe->layout, recipe->head, batch);
  add_program(*recipe);
  batch.recipe = std::move(recipe);
  return {};
}

Status Planner::cut_rows(const CompleteDecision& decision, Cut& cut) const {
  const Operation& operation = *decision.operations.front();
  Descriptor descriptor;
  const bool is_readable = decode_descriptor(operation.descriptor, descriptor);
  RC_ASSERT(is_readable, operation.label());
  if (descriptor.kind == Kind::alltoall) return cut_exchange(decision, descriptor, cut);
  const RowTable& rows = rows_of(decision);
  const std::vector<int64_t> mine = own_rows(operation.request, world_.rank(), world_.size());
  const bool fits = incomplete_rank(descriptor, rows, world_.size()).is_none() &&
                    (mine.empty() || rows[world_.rank().index()] == mine);
  if (!fits) return misfit(operation);
  cut = cut_of(descriptor, rows, world_.rank(), world_.size());
  return {};
}

// The decision has the rows that this rank receives. The operation has the rows that it sends.
Status Planner::cut_exchange(const CompleteDecision& decision, const Descriptor& descriptor,
                             Cut& cut) const {
  const Operation& operation = *decision.operations.front();
  const auto ranks = static_cast<std::size_t>(world_.size());
  Exchange exchange{
      own_rows(operation.request, world_.rank(), world_.size()), {}, decision.most_rows};
  if (exchange.given.size() == 1) exchange.given.resize(ranks, exchange.given.front());
  for (const std::vector<int64_t>& numbers : rows_of(decision)) {
    if (!numbers.empty()) exchange.got.push_back(numbers.front());
  }
  const bool fits = exchange.got.size() == ranks &&
                    exchange.got[world_.rank().index()] == exchange.given[world_.rank().index()] &&
                    most_rows({exchange.given, exchange.got}) <= exchange.most &&
                    (!needs_even(decision.movement.algorithm) || exchange.is_even());
  if (!fits) return misfit(operation);
  cut = exchange_cut(descriptor, exchange);
  return {};
}

Status Planner::lay_out_ragged(const CompleteDecision& decision, const Cut& cut,
                               Layout& layout) const {
  Operation& operation = *decision.operations.front();
  const Request& request = operation.request;
  std::vector<std::byte*> inputs, outputs;
  std::vector<Gpu> gpus;
  for (std::size_t i = 0; i < request.tensors.size(); ++i) {
    std::vector<int64_t> dims = request.tensors[i].dims;
    if (dims.empty()) dims = {1};
    dims.front() = cut.output_rows(i);
    const uint64_t bytes = cut.row_bytes[i] * static_cast<uint64_t>(dims.front());
    RC_RETURN_IF_ERROR(make_result(operation, i, std::move(dims), bytes, outputs.emplace_back()));
    // Inputs are only read. Piece has a single pointer type.
    inputs.push_back(const_cast<std::byte*>(request.tensors[i].input));
    gpus.push_back(request.tensors[i].gpu);
  }
  if (request.kind == Kind::alltoall) {
    std::byte* received = nullptr;
    RC_RETURN_IF_ERROR(
        make_result(operation, 1, {world_.size()}, sizeof(int64_t) * world_.size(), received));
    tell(rows_of(decision), received);
  }
  layout.assign_ragged(cut, inputs, outputs, decision.movement.segment_bytes, gpus);
  return {};
}

}  // namespace rdmacoll
