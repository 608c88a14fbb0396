// From a decision and the operations of this rank to a batch that the executor can run.
#pragma once

#include <array>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <tuple>
#include <vector>

#include "agreement/messages.h"
#include "base/status.h"
#include "base/world.h"
#include "collectives/algorithms.h"
#include "collectives/choose.h"
#include "execution/executor.h"
#include "execution/program.h"
#include "memory/pool.h"
#include "memory/shared_results.h"
#include "transport/transport.h"

namespace rdmacoll {

// A decision whose operations were found; what is missing is connections.
struct Decided {
  // Of results that a node shares, in this process; no memory: each rank has its own.
  struct Place {
    ResultBlock block;
    std::shared_ptr<void> hold;

    bool is_shared() const { return block.shared != nullptr; }
  };

  uint64_t sequence = 0;
  Algorithm algorithm = Algorithm::none;
  uint64_t segment_bytes = 0;
  RowsRef rows;  // as in Decision; null: none
  int64_t most_rows = 0;
  bool is_planned = false;  // by a plan: nobody has asked whether all are ready
  std::vector<OperationRef> operations;
  std::optional<Place> place;  // once it is known
};

class Planner {
 public:
  // `tuning`: which batches are packed into shared memory, and of which peers read the caller's
  // memory where it lies.
  // `ranks`: of the members in the job, by which the transport knows them, and of the servers
  // behind them. From here on, in programs, peers have these numbers.
  Planner(const World& world, const std::vector<int>& ranks, int servers, Transport& transport,
          MemoryPool& pool, const Tuning& tuning);

  // Whether every peer of the schedule is connected; asks for the missing connections.
  bool connect(const Decided& decided);
  // Whom the schedule has this rank send to or receive from.
  const std::vector<int>& peers_of(const Decided& decided);
  // Whether what this one did the last time is what it does by that decision: its recipe holds, and
  // all peers are connected.
  bool does_again(const Operation& operation, const Decision& decision, const RowsRef& rows,
                  bool is_planned) const;
  // All peers are connected: the batch, which takes the operations over unless this is an error.
  // Results whose size was not known before are allocated here.
  Status prepare(Decided& decided, Batch& batch);
  // A peer more: what can be seen may have changed.
  void connected() {
    around_.is_known = false;
    ++look_;
  }
  const std::set<int>& asked() const { return asked_; }  // peers that some schedule needs
  std::size_t programs() const { return programs_.made(); }

 private:
  struct Around {  // what peers and devices can see
    bool is_known = false;
    std::vector<bool> views, devices;  // as in Placement
    bool foreign = true;               // memory outside the pool
    // Transfers up to here are copied by the transport itself, within the node and by devices.
    std::size_t view_eager_bytes = SIZE_MAX, device_eager_bytes = SIZE_MAX;
    bool is_viewed = false;  // somebody has views
    std::size_t pieces_max = SIZE_MAX;
  };
  static constexpr std::size_t kRecipes = 64;

  bool is_known(const Decided& decided) const;
  Shape shape_of(const Decided& decided) const;
  static bool calls_roll(const Operation& operation, Algorithm algorithm, bool is_planned);
  static bool calls_roll(const Decided& decided) {
    return calls_roll(*decided.operations.front(), decided.algorithm, decided.is_planned);
  }
  bool is_recipe_of(const Operation& operation, Algorithm algorithm, uint64_t segment_bytes,
                    const RowsRef& rows, bool is_planned) const;
  const Outline& outline_of(const Recipe::Head& head) {
    return outline_of(head.algorithm, head.shape, head.calls_roll);
  }
  const Outline& outline_of(Algorithm algorithm, const Shape& shape, bool calls_roll);
  Recipe::Head head_of(const Decided& decided) const;
  static Status place_results(Operation& operation, const Decided& decided);
  void list_tensors(const Decided& decided);
  static std::size_t index_of(std::span<const Layout::Tensor> tensors);
  RecipeRef even_recipe(const Recipe::Head& head);
  Status ragged_recipe(const Decided& decided, const Recipe::Head& head, RecipeRef& made);
  Status cut_rows(const Decided& decided, Cut& cut) const;
  Status cut_exchange(const Decided& decided, const Descriptor& descriptor, Cut& cut) const;
  Status lay_out_ragged(const Decided& decided, const Cut& cut, Layout& layout) const;
  void look_around();
  bool can_see(const Piece& memory, bool is_read_in_place) const;
  void see(std::span<const Layout::Tensor> tensors, Recipe::Head& head);
  void see(const Layout& layout, Recipe::Head& head);
  void add_program(Recipe& recipe);

  const World& world_;
  const std::vector<int>& ranks_;
  const int servers_;
  std::vector<int> nodes_;  // of each rank
  std::vector<int> numa_nodes_;
  Transport& transport_;
  MemoryPool& pool_;
  const Tuning& tuning_;
  Programs programs_;
  std::set<int> asked_;
  std::map<std::tuple<Algorithm, int, bool>, Outline> outlines_;  // by algorithm, root, roll call
  Around around_;
  uint64_t look_ = 1;                        // the number of what is in around_
  std::array<RecipeRef, kRecipes> recipes_;  // the last ones, by index_of()
  std::vector<Layout::Tensor> tensors_;      // of the batch that is being prepared
};

}  // namespace rdmacoll
