// Everything about a batch that does not depend on its callers. A recipe is reused when the same
// memory is used again.
//
// An operation that runs again keeps its recipe, and starts without a new layout and without
// finding its memory. This helps calls up to 64 KiB. To see it, let Planner::is_recipe_of() return
// false. The planner keeps recipes of other operations, which helps less
// (docs/measurements/2026-11-28-what-mechanisms-are-worth.md).
#pragma once

#include <memory>

#include "base/dtype.h"
#include "execution/layout.h"
#include "execution/program.h"
#include "operation/operation.h"

namespace rdmacoll {

struct Recipe {
  struct Head {
    Kind kind = Kind::barrier;
    Movement movement;
    bool calls_roll = false;
    Shape shape;
    Dtype dtype = Dtype::uint8;
    ReduceOp op = ReduceOp::sum;
    double divisor = 1.0;
    double prescale = 1.0;
    double postscale = 1.0;
    // The same values as in Placement, before the limit on pieces is applied.
    CallerMemory input = CallerMemory::hidden;
    CallerMemory output = CallerMemory::hidden;
    // The GPU that has all inputs and outputs, if all peers read its work memory. Else kHost.
    Gpu gpu = kHost;
    // The same as `input` and `output` for work memory on that GPU: visible if all peers have
    // opened the callers' memory.
    CallerMemory gpu_input = CallerMemory::hidden;
    CallerMemory gpu_output = CallerMemory::hidden;
    DirectAccess direct;            // as in Placement
    bool is_pinned_by_run = false;  // NICs may have direct access, which each run asks for

    bool operator==(const Head&) const = default;
  };

  Head head;
  RowsRef rows;  // the rows of its decision
  Layout layout;
  const Program* program = nullptr;  // null if no data moves
  // The program whose work memory is on head.gpu. It runs unless there is no room. Null: none.
  const Program* on_gpu = nullptr;
  int segments_at_once = kSegmentsInFlight;  // with work memory on the host
};

using RecipeRef = std::shared_ptr<const Recipe>;

}  // namespace rdmacoll
