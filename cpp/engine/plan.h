// From a decision and the operations of this rank to a batch that the executor can run.
#pragma once

#include <set>
#include <vector>

#include "base/status.h"
#include "base/world.h"
#include "collectives/algorithms.h"
#include "engine/executor.h"
#include "engine/messages.h"
#include "engine/program.h"
#include "memory/pool.h"
#include "transport/transport.h"

namespace rdmacoll {

// A decision whose operations were found; what is missing is connections.
struct Decided {
  Decision decision;
  std::vector<OperationRef> operations;
};

class Planner {
 public:
  // Below `one_copy_bytes` a batch is packed into shared memory, from there on peers read the
  // caller's memory where it lies: a system call and page look-ups cost more than a short copy.
  Planner(const World& world, Transport& transport, MemoryPool& pool, uint64_t one_copy_bytes);

  // Whether every peer of the schedule is connected; asks for the missing connections.
  bool connect(const Decided& decided);
  // All peers are connected: the batch, which takes the operations over unless this is an error. An
  // allgather's result is allocated here.
  Status prepare(Decided& decided, Batch& batch);
  const std::set<int>& asked() const { return asked_; }  // peers that some schedule needs
  std::size_t programs() const { return programs_.made(); }

 private:
  Shape shape_of(const Decided& decided) const;
  Status lay_out(const Decided& decided, const Shape& shape, Batch& batch) const;
  Status lay_out_gathered(Operation& operation, const Decision& decision, Batch& batch) const;
  Placement place(const Layout& layout) const;

  const World& world_;
  Transport& transport_;
  MemoryPool& pool_;
  uint64_t one_copy_bytes_;
  Programs programs_;
  std::set<int> asked_;
  std::map<std::pair<Algorithm, int>, std::vector<int>> peers_;  // by algorithm and root
};

}  // namespace rdmacoll
