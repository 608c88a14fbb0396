// Finds the memory that peers and NICs see, and the program that fits it.
#include <algorithm>

#include "execution/planner.h"
#include "memory/peer_readable.h"

namespace rdmacoll {
namespace {

// The pieces without empty ones. Those that follow each other in memory are one.
std::vector<Piece> joined(const std::vector<Piece>& pieces) {
  std::vector<Piece> all;
  for (const Piece& piece : pieces) {
    if (piece.bytes == 0) continue;
    const bool follows = !all.empty() && all.back().gpu == piece.gpu &&
                         all.back().data + all.back().bytes == piece.data;
    if (follows) {
      all.back().bytes += piece.bytes;
    } else {
      all.push_back(piece);
    }
  }
  return all;
}

}  // namespace

void Planner::refresh_topology() {
  topology_ = {.is_known = true};
  const JobRank me = members_[world_.rank()];
  for (JobRank peer : members_) {
    const bool connected = peer != me && transport_.is_connected(peer.value());
    const Reach reach = connected ? transport_.reach(peer.value()) : Reach{};
    topology_.views.push_back(reach.views);
    topology_.lends.push_back(reach.lends);
    topology_.nics.push_back(!reach.views && !reach.foreign_transfers);
    if (topology_.nics.back()) {
      topology_.foreign = false;
      topology_.has_nics = true;
      topology_.nic_eager_bytes = std::min(topology_.nic_eager_bytes, reach.eager_bytes);
      topology_.nic_eager_bytes_max = std::max(topology_.nic_eager_bytes_max, reach.eager_bytes);
    }
    if (!reach.views) continue;
    topology_.is_viewed = true;
    topology_.view_eager_bytes = std::min(topology_.view_eager_bytes, reach.eager_bytes);
    topology_.foreign = topology_.foreign && reach.foreign_views;
    topology_.pieces_max = std::min(topology_.pieces_max, reach.view_pieces_max);
  }
}

bool Planner::reads_callers() {
  if (!topology_.is_known) refresh_topology();
  return topology_.is_viewed && topology_.foreign;
}

// The GPU that has all tensors of the operations. kHost: there is none, or there are several.
Gpu Planner::only_gpu(std::span<const OperationRef> operations) const {
  Gpu gpu = kHost;
  for (const OperationRef& operation : operations) {
    for (const TensorRef& tensor : operation->request.tensors) {
      if (tensor.gpu == kHost || (gpu != kHost && tensor.gpu != gpu)) return kHost;
      gpu = tensor.gpu;
    }
  }
  return gpu;
}

// Bytes of work memory with which all segments of the operations are in flight.
uint64_t Planner::bytes_in_flight(std::span<const OperationRef> operations) const {
  uint64_t bytes = 0;
  for (const OperationRef& operation : operations) {
    const bool has_all = row_of(operation->request.kind).makes_result;
    bytes += operation->request.bytes() * static_cast<uint64_t>(has_all ? world_.size() : 1);
  }
  return bytes;
}

// The GPU that has all tensors of the decision, if all its peers may read memory there. kHost: host
// memory serves the decision.
Gpu Planner::gpu_to_share(const CompleteDecision& decision) {
  if (cuda_ipc_ == CudaIpc::off || gpu_work_.load(std::memory_order_acquire) == nullptr) {
    return kHost;
  }
  const Gpu gpu = only_gpu(decision.operations);
  if (gpu == kHost) return kHost;
  const std::vector<JobRank>& peers = peers_of(decision);
  const auto has_views = [&](JobRank peer) { return transport_.reach(peer.value()).views; };
  return !peers.empty() && std::ranges::all_of(peers, has_views) ? gpu : kHost;
}

CopyCosts Planner::gpu_copies() const {
  const GpuWork* const work = gpu_work_.load(std::memory_order_acquire);
  return work == nullptr ? CopyCosts() : work->copy_costs();
}

// Whether a GPU has become ready for sums since the last note of it.
bool Planner::has_ready_gpus() const {
  const GpuWork* const work = gpu_work_.load(std::memory_order_acquire);
  return work != nullptr && work->version() != gpu_work_version_;
}

// A GPU that has become ready changes the answers of this rank, and those to peers.
void Planner::note_ready_gpus() {
  if (!has_ready_gpus()) return;
  GpuWork* const work = gpu_work_.load(std::memory_order_acquire);
  gpu_work_version_ = work->version();
  connected();
  transport_.open_offers(*work);
}

// Offers this rank's work memory on a GPU to the peers of the decision. Returns false while some
// have not answered. Peers that have no GPU ready answer at once.
bool Planner::is_offered(const CompleteDecision& decision) {
  const Gpu gpu = gpu_to_share(decision);
  if (gpu == kHost) return true;
  GpuWork* const work = gpu_work_.load(std::memory_order_acquire);
  const int slabs = work->prepare(gpu, bytes_in_flight(decision.operations));
  bool have_answered = true, are_open = slabs > 0;
  for (int number = 0; number < slabs; ++number) {
    const GpuSlab& slab = work->slab(gpu, number);
    have_answered = offer_to_peers(decision, slab, *work) && have_answered;
    are_open = are_open && is_open(slab, peers_of(decision));
  }
  // Arrays that peers have open stay until the end, so those of no use to them are not offered.
  return have_answered && (!are_open || offer_arrays(decision, *work));
}

// Returns whether all peers of the decision have answered the offer.
bool Planner::offer_to_peers(const CompleteDecision& decision, const GpuSlab& slab, GpuWork& work) {
  bool have_answered = true;
  for (JobRank peer : peers_of(decision)) {
    const GpuViews views = transport_.gpu_views(peer.value(), slab);
    if (views == GpuViews::not_offered) transport_.offer(peer.value(), slab, work);
    have_answered = have_answered && (views == GpuViews::yes || views == GpuViews::no);
  }
  return have_answered;
}

bool Planner::is_open(const GpuSlab& slab, const std::vector<JobRank>& peers) const {
  return std::ranges::all_of(peers, [&](JobRank peer) {
    return transport_.gpu_views(peer.value(), slab) == GpuViews::yes;
  });
}

// The same for the allocations that have arrays of the callers.
bool Planner::offer_arrays(const CompleteDecision& decision, GpuWork& work) {
  bool have_answered = true;
  const GpuSlab* last = nullptr;
  const auto offer = [&](const std::byte* data, uint64_t bytes, Gpu gpu) {
    if (data == nullptr || bytes == 0) return;
    const GpuSlab* const found =
        work.allocation_of({const_cast<std::byte*>(data), bytes, gpu}, true);
    if (found == nullptr || found == last) return;
    last = found;
    have_answered = offer_to_peers(decision, *found, work) && have_answered;
  };
  for (const OperationRef& operation : decision.operations) {
    const Request& request = operation->request;
    for (const TensorRef& tensor : request.tensors) {
      const auto* const input = static_cast<const std::byte*>(tensor.input);
      const auto* const output = static_cast<const std::byte*>(tensor.output);
      offer(input, tensor.bytes(request.dtype), tensor.gpu);
      if (output != input) offer(output, tensor.bytes(request.dtype), tensor.gpu);
    }
  }
  return have_answered;
}

// The GPU whose work memory serves the decision. kHost: host memory does.
Gpu Planner::gpu_of_work(const CompleteDecision& decision) {
  const Gpu gpu = gpu_to_share(decision);
  if (gpu == kHost) {
    shares_gpus_ = shares_gpus_ && only_gpu(decision.operations) == kHost;
    return kHost;
  }
  GpuWork* const work = gpu_work_.load(std::memory_order_acquire);
  const int slabs = work->prepare(gpu, 0);
  shares_gpus_ = slabs > 0;
  for (JobRank peer : peers_of(decision)) {
    for (int number = 0; number < slabs; ++number) {
      const GpuViews views = transport_.gpu_views(peer.value(), work->slab(gpu, number));
      shares_gpus_ = shares_gpus_ && views == GpuViews::yes;
    }
  }
  if (!shares_gpus_) return kHost;
  work->enable(gpu);
  return gpu;
}

// Whether peers can see this memory without a system call.
bool Planner::can_see(const Piece& memory) const {
  return pool_.contains(memory.data, memory.bytes) ||
         (!topology_.is_viewed && transport_.is_pinned(memory));
}

// If a GPU has one part, all count as memory of GPUs, since one step may touch parts of several
// tensors.
template <typename Parts, typename PieceOf>
CallerMemory Planner::kind_of(const Parts& parts, bool is_read_in_place, PieceOf piece_of) const {
  const bool may_be_read = topology_.foreign && is_read_in_place;
  std::vector<Piece> foreign;  // seen by a system call only
  bool is_hidden = false;
  for (const auto& part : parts) {
    const Piece piece = piece_of(part);
    if (piece.gpu != kHost) return CallerMemory::device;
    if (is_hidden || can_see(piece)) continue;
    is_hidden = !may_be_read;
    if (may_be_read) foreign.push_back(piece);
  }
  return is_hidden || !are_peer_readable(foreign) ? CallerMemory::hidden : CallerMemory::visible;
}

// The same with work memory on the GPU of the operation: whether its peers have opened all this
// memory of callers.
template <typename Parts, typename PieceOf>
CallerMemory Planner::kind_on_gpu(const Parts& parts, const Recipe::Head& head, PieceOf piece_of) {
  if (head.gpu == kHost) return CallerMemory::hidden;
  GpuWork& work = *gpu_work_.load(std::memory_order_acquire);
  const GpuSlab* last = nullptr;
  for (const auto& part : parts) {
    const Piece piece = piece_of(part);
    if (piece.bytes == 0) continue;
    const GpuSlab* const found = piece.data == nullptr ? nullptr : work.allocation_of(piece, false);
    if (found == nullptr || (found != last && !is_open(*found, outline_of(head).peers)))
      return CallerMemory::hidden;
    last = found;
  }
  return CallerMemory::visible;
}

// Whether NICs may be worth their access to memory of GPUs.
bool Planner::suits_nics(const Recipe::Head& head, uint64_t bytes) const {
  const bool is_of_gpu = head.input == CallerMemory::device || head.output == CallerMemory::device;
  return is_of_gpu && topology_.has_nics && bytes > topology_.nic_eager_bytes_max;
}

void Planner::see(std::span<const Layout::Tensor> tensors, Recipe::Head& head, Batch& batch) {
  if (!topology_.is_known) refresh_topology();
  uint64_t bytes = 0;
  for (const Layout::Tensor& tensor : tensors) bytes += tensor.bytes;
  const auto input = [](const Layout::Tensor& tensor) {
    return Piece{const_cast<std::byte*>(tensor.input), tensor.bytes, tensor.gpu};
  };
  const auto output = [](const Layout::Tensor& tensor) {
    return Piece{tensor.output, tensor.bytes, tensor.gpu};
  };
  head.input = kind_of(tensors, head.movement.in_place, input);
  head.output = kind_of(tensors, head.movement.in_place, output);
  head.gpu_input = kind_on_gpu(tensors, head, input);
  head.gpu_output = kind_on_gpu(tensors, head, output);
  if (!suits_nics(head, bytes)) return;
  std::vector<Piece> inputs, outputs;
  for (const Layout::Tensor& tensor : tensors) {
    if (tensor.bytes == 0) continue;
    inputs.push_back({const_cast<std::byte*>(tensor.input), tensor.bytes, tensor.gpu});
    outputs.push_back({tensor.output, tensor.bytes, tensor.gpu});
  }
  pin(inputs, outputs, head, batch);
}

void Planner::see(const Layout& layout, Recipe::Head& head, Batch& batch) {
  if (!topology_.is_known) refresh_topology();
  const auto itself = [](const Piece& piece) { return piece; };
  head.input = kind_of(layout.input_memory(), head.movement.in_place, itself);
  head.output = kind_of(layout.output_memory(), head.movement.in_place, itself);
  head.gpu_input = kind_on_gpu(layout.input_memory(), head, itself);
  head.gpu_output = kind_on_gpu(layout.output_memory(), head, itself);
  if (!suits_nics(head, layout.bytes())) return;
  pin(joined(layout.input_memory()), joined(layout.output_memory()), head, batch);
}

// The directions in which NICs may access all of this memory themselves.
GpuWays Planner::gpu_ways(std::span<const Piece> memory) const {
  GpuWays all{.sends = !memory.empty(), .receives = !memory.empty()};
  GpuWays ways;
  Gpu asked = kHost;
  if (total_bytes(memory) < gpu_direct_bytes_ * memory.size()) return {};
  for (const Piece& piece : memory) {
    if (piece.gpu == kHost || piece.data == nullptr) return {};
    if (piece.gpu != asked) ways = transport_.gpu_ways(asked = piece.gpu);
    all = {.sends = all.sends && ways.sends, .receives = all.receives && ways.receives};
    if (!all.any()) return {};
  }
  return all;
}

// Memory of GPUs is pinned in each run, since its owner may have freed it since the last one.
void Planner::pin(const std::vector<Piece>& inputs, const std::vector<Piece>& outputs,
                  Recipe::Head& head, Batch& batch) {
  const bool may_read = gpu_ways(inputs).sends;
  const GpuWays of_outputs = gpu_ways(outputs);
  head.is_pinned_by_run = may_read || of_outputs.receives;
  head.direct.reads_input = may_read && batch.pinned.add(transport_, inputs);
  head.direct.writes_output = of_outputs.receives && batch.pinned.add(transport_, outputs);
  head.direct.reads_output = head.direct.writes_output && of_outputs.sends;
}

void Planner::add_program(Recipe& recipe) {
  const Recipe::Head& head = recipe.head;
  if (head.movement.algorithm == Algorithm::none && !head.calls_roll) return;
  if (head.calls_roll) recipe.layout.have_a_segment();
  const Layout& layout = recipe.layout;
  const int parts_at_once = outline_of(head).parts_at_once;
  const bool few = layout.pieces_bound() <= topology_.pieces_max ||
                   layout.pieces_max(parts_at_once) <= topology_.pieces_max;
  const auto in_few_pieces = [few](CallerMemory memory) {
    return memory == CallerMemory::visible && !few ? CallerMemory::hidden : memory;
  };
  Placement placement{topology_.views, in_few_pieces(head.input), in_few_pieces(head.output),
                      topology_.nics, head.shape.shares_output};
  placement.lends = topology_.lends;
  // Segments that the transport copies need no visible memory. Both ends of a transfer know its
  // size, and decide alike.
  const uint64_t bytes = layout.segment_bytes_max();
  if (bytes <= topology_.view_eager_bytes) placement.views.assign(placement.views.size(), false);
  if (bytes <= topology_.nic_eager_bytes) placement.nics.clear();
  // The processor copies small transfers, and cannot access memory of GPUs.
  if (head.direct != DirectAccess{} && layout.part_bytes_min() > topology_.nic_eager_bytes_max) {
    placement.direct = head.direct;
  }
  recipe.program =
      &programs_.prepared(head.movement.algorithm, head.shape, placement, head.calls_roll);
  // Segments for GPUs may be longer than the pool allows for several at once.
  const bool fits = head.movement.segment_bytes <=
                    segment_bytes_that_fit(head.movement.algorithm, head.shape, segment_room_);
  recipe.segments_at_once = fits ? kSegmentsInFlight : 1;
  const bool is_viewed = std::ranges::find(placement.views, true) != placement.views.end();
  if (head.gpu == kHost || !is_viewed || placement.output_shared) return;
  const GpuWork& work = *gpu_work_.load(std::memory_order_acquire);
  if (cuda_ipc_ != CudaIpc::always && layout.bytes() < work.bytes_min(head.gpu)) return;
  // Kernels and peers reach the work memory, and this rank's kernels the callers' memory. Peers
  // reach that which they have opened.
  placement.input = in_few_pieces(head.gpu_input);
  placement.output = in_few_pieces(head.gpu_output);
  placement.direct = {};
  recipe.on_gpu =
      &programs_.prepared(head.movement.algorithm, head.shape, placement, head.calls_roll);
}

}  // namespace rdmacoll
