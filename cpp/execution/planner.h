// Turns a decision and the operations of this rank into a batch for the executor.
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <set>
#include <span>
#include <tuple>
#include <vector>

#include "agreement/complete_decision.h"
#include "agreement/keyed_decision.h"
#include "base/config.h"
#include "base/set_world.h"
#include "base/status.h"
#include "collectives/algorithms.h"
#include "collectives/choose.h"
#include "execution/executor.h"
#include "execution/program.h"
#include "memory/gpu_work.h"
#include "memory/pool.h"
#include "memory/shared_results.h"
#include "transport/transport.h"

namespace rdmacoll {

// The memory of shared results, mapped into this process. Without memory, each rank uses its own.
struct SharedResult {
  ResultBlock block;
  std::shared_ptr<void> hold;

  bool is_shared() const { return block.shared != nullptr; }
};

struct PlannerParts {
  const SetWorld& world;
  const SetMembers& members;
  int servers = 0;
  Transport& transport;
  MemoryPool& pool;
  const std::atomic<GpuWork*>& gpu_work;  // null until a GPU is used
  CudaIpc cuda_ipc = CudaIpc::off;
  uint64_t gpu_direct_bytes = 0;       // as in Tuning
  uint64_t segment_room = UINT64_MAX;  // memory of the pool for a segment in flight
};

class Planner {
 public:
  explicit Planner(const PlannerParts& parts);

  // Returns whether all peers of the schedule are connected, and know the work memory of this
  // rank's GPU. Otherwise requests the missing connections.
  bool connect(const CompleteDecision& decision);
  // The ranks that the schedule sends to or receives from.
  const std::vector<JobRank>& peers_of(const CompleteDecision& decision);
  // Whether the operation's last recipe is valid for this decision. If so, all peers are connected.
  bool can_replay(const Operation& operation, const KeyedDecision& keyed) const;
  // Builds the batch, once all peers are connected. Results of unknown size are allocated here.
  // Moves the operations into the batch unless an error is returned.
  Status prepare(CompleteDecision& decision, const SharedResult& result, Batch& batch);
  // A peer has connected, or has answered an offer of memory on a GPU. So the visibility of memory
  // may have changed.
  void connected() {
    topology_.is_known = false;
    ++topology_version_;
  }
  // Whether all connected peers read callers' memory by a system call.
  bool reads_callers();
  // Whether the last operation on a GPU was served by work memory there.
  bool shares_gpus() const { return shares_gpus_; }
  CopyCosts gpu_copies() const;
  // peers that a schedule needed before they were connected
  const std::set<JobRank>& requested_peers() const { return requested_; }
  std::size_t programs() const { return programs_.made(); }

 private:
  struct Topology {  // the memory that peers and NICs can see
    bool is_known = false;
    std::vector<bool> views, nics, lends;  // as in Placement
    bool foreign = true;                   // memory outside the pool is visible
    // Transfers up to these sizes are copied by the transport, within the node and by NICs.
    std::size_t view_eager_bytes = SIZE_MAX, nic_eager_bytes = SIZE_MAX;
    std::size_t nic_eager_bytes_max = 0;  // the largest of the latter sizes
    bool has_nics = false;
    bool is_viewed = false;  // some peer reads memory in place
    std::size_t pieces_max = SIZE_MAX;
  };
  static constexpr std::size_t kRecipes = 64;

  bool is_known(const CompleteDecision& decision) const;
  Shape shape_of(const CompleteDecision& decision, bool shares_results) const;
  static bool calls_roll(const Operation& operation, Algorithm algorithm, bool is_planned);
  static bool calls_roll(const CompleteDecision& decision) {
    return calls_roll(*decision.operations.front(), decision.movement.algorithm,
                      decision.is_planned);
  }
  bool is_recipe_of(const Operation& operation, const Movement& movement, const RowsRef& rows,
                    bool is_planned) const;
  const Outline& outline_of(const Recipe::Head& head) {
    return outline_of(head.movement.algorithm, head.shape, head.calls_roll);
  }
  const Outline& outline_of(Algorithm algorithm, const Shape& shape, bool calls_roll);
  Recipe::Head head_of(const CompleteDecision& decision, bool shares_results) const;
  static Status place_results(Operation& operation, const SharedResult& result);
  void list_tensors(const CompleteDecision& decision);
  static std::size_t index_of(std::span<const Layout::Tensor> tensors);
  RecipeRef even_recipe(const Recipe::Head& head);
  Status ragged_recipe(const CompleteDecision& decision, const Recipe::Head& head, Batch& batch);
  Status cut_rows(const CompleteDecision& decision, Cut& cut) const;
  Status cut_exchange(const CompleteDecision& decision, const Descriptor& descriptor,
                      Cut& cut) const;
  Status lay_out_ragged(const CompleteDecision& decision, const Cut& cut, Layout& layout) const;
  void refresh_topology();
  Gpu only_gpu(std::span<const OperationRef> operations) const;
  uint64_t bytes_in_flight(std::span<const OperationRef> operations) const;
  Gpu gpu_to_share(const CompleteDecision& decision);
  bool is_offered(const CompleteDecision& decision);
  // Whether all these peers have opened the slab.
  bool is_open(const GpuSlab& slab, const std::vector<JobRank>& peers) const;
  bool offer_to_peers(const CompleteDecision& decision, const GpuSlab& slab, GpuWork& work);
  bool offer_arrays(const CompleteDecision& decision, GpuWork& work);
  bool has_ready_gpus() const;
  void note_ready_gpus();
  Gpu gpu_of_work(const CompleteDecision& decision);
  bool can_see(const Piece& memory) const;
  template <typename Parts, typename PieceOf>
  CallerMemory kind_of(const Parts& parts, bool is_read_in_place, PieceOf piece_of) const;
  template <typename Parts, typename PieceOf>
  CallerMemory kind_on_gpu(const Parts& parts, const Recipe::Head& head, PieceOf piece_of);
  bool suits_nics(const Recipe::Head& head, uint64_t bytes) const;
  void see(std::span<const Layout::Tensor> tensors, Recipe::Head& head, Batch& batch);
  void see(const Layout& layout, Recipe::Head& head, Batch& batch);
  GpuWays gpu_ways(std::span<const Piece> memory) const;
  void pin(const std::vector<Piece>& inputs, const std::vector<Piece>& outputs, Recipe::Head& head,
           Batch& batch);
  void add_program(Recipe& recipe);

  const SetWorld& world_;
  const SetMembers& members_;
  const int servers_;
  std::vector<int> nodes_;  // by rank
  std::vector<int> numa_nodes_;
  Transport& transport_;
  MemoryPool& pool_;
  const std::atomic<GpuWork*>& gpu_work_;
  const CudaIpc cuda_ipc_;
  const uint64_t gpu_direct_bytes_;
  const uint64_t segment_room_;
  bool shares_gpus_ = false;
  uint64_t gpu_work_version_ = 0;
  Programs programs_;
  std::set<JobRank> requested_;
  // by algorithm, root and roll call
  std::map<std::tuple<Algorithm, int, bool>, Outline> outlines_;
  Topology topology_;
  // the topology version of topology_; each new connection increments it
  uint64_t topology_version_ = 1;
  std::array<RecipeRef, kRecipes> recipes_;  // the last recipes, by index_of()
  std::vector<Layout::Tensor> tensors_;      // the tensors of the batch that is being prepared
};

}  // namespace rdmacoll
