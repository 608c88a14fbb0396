// Chooses the algorithm and the segment size. Pure. Only the root of the control tree calls it,
// with rank 0's numbers: ranks that chose for themselves could choose differently.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string_view>
#include <tuple>
#include <vector>

#include "base/copy_costs.h"
#include "base/link_model.h"
#include "collectives/algorithms.h"

namespace rdmacoll {

// The links and the memory, of which all costs follow, and the lengths of segments. The defaults
// are for RDMA of 100 Gbit/s.
struct Tuning {
  LinkModel links = kNicLinks;
  // Sums up to here may share a batch, so between nodes they add in canonical order.
  uint64_t batched_bytes = 64 << 10;
  // Within a node callers' memory is packed into shared memory, and is still in the cache when the
  // peer reads it. Two such copies take less time than one copy by the kernel, which reads callers'
  // memory in place. The exceptions are large scattered data, and exchanges that fit no cache
  // (AMD EPYC, 2026-11-28: docs/measurements/2026-11-28-other-collectives.md). Large arrays of
  // numpy lie in huge pages, of which the root knows nothing. So these two limits are no formulas.
  // Trials correct them on other processors.
  uint64_t one_copy_bytes = UINT64_MAX;
  uint64_t one_copy_bytes_scattered = 4 << 20;
  uint64_t one_copy_bytes_exchange = 32 << 20;
  // From here on the root tries several algorithms for a sum within a node, and both ways to move
  // large data of any kind. Sums below the first size take less time than what a plan saves them.
  // Below the second one both ways take the same time: data that was just copied is still in the
  // caches (AMD EPYC, 2026-11-28: docs/measurements/2026-11-28-trials.md).
  uint64_t trial_bytes = 16 << 10;
  uint64_t trial_bytes_in_place = 1 << 20;
  int trial_row = 8;  // the number of sums in a row of trials; rows of 3 chose wrongly (there)
  // The least time of so many planned sums tells whether times have changed (RDMACOLL_TUNE=online).
  // Trials take place again after so many sums of one size, so that they cost little.
  int drift_window = 32;
  uint64_t drift_sums = 3072;
  // The rest are lengths of segments. Some tens of segments fill a pipeline, and each costs its
  // messages. Between nodes no measurement of a machine may change them: a ring begins its sums
  // where segments begin, so they decide its bits. `rdmacoll plan` shows what another length costs
  // in the model (RDMACOLL_SEGMENT_BYTES).
  uint64_t segment_bytes_shared = 4 << 20;
  // Each of many ranks packs whole segments. Longer ones save them few messages, and take memory.
  uint64_t segment_bytes_packed = 2 << 20;
  // NICs access tensors on GPUs themselves if the batch has at least so many bytes for each of its
  // tensors. Many smaller ones cost them more than copies. A few beside large ones do not.
  uint64_t gpu_direct_bytes = 32 << 10;
  // Limits for data that is staged from and to GPUs whose copies were measured.
  uint64_t segment_bytes_staged_least = 256 << 10;
  uint64_t segment_bytes_staged = 16 << 20;
  // Each step of a segment on GPUs costs the start of a kernel and its way to the peer.
  uint64_t segment_bytes_gpus = 64 << 20;
  uint64_t segment_bytes_network = 4 << 20;
  uint64_t segment_bytes_stages = 512 << 10;  // between nodes, with stages that overlap
  uint64_t segment_bytes_rank = 4 << 20;      // ... at most, for each rank's share of a sum
  uint64_t segment_bytes_trees_least = 16 << 10;
  uint64_t segment_bytes_trees = 128 << 10;  // at most: a segment has to reach the leaves

  bool reads_in_place(AlgorithmRow::Result result, uint64_t bytes) const {
    if (result == AlgorithmRow::Result::exchange) return bytes >= one_copy_bytes_exchange;
    return bytes >= (is_scattered(result) ? one_copy_bytes_scattered : one_copy_bytes);
  }
};

Tuning tuning_for(const LinkModel& links);

// One range of RDMACOLL_ALLREDUCE_ALGORITHM. Ranges grow in size, and the last one is for the rest.
struct Forced {
  std::optional<Algorithm> algorithm;  // none: in this range nothing is forced
  uint64_t bytes_max = UINT64_MAX;

  bool operator==(const Forced&) const = default;
};

// How ranks are spread over nodes.
struct Spread {
  // As Shape::nodes, whose owner owns them. Empty, too: ranks of a single node that use its
  // network.
  std::span<const int> nodes = {};
  bool shares_nodes = false;         // several nodes, and more ranks than nodes
  bool is_canonical_by_node = true;  // sums of whole nodes are nodes of the canonical tree
  int ranks_of_node = 1;             // all nodes have so many, in order; 0: they do not

  Spread() = default;
  explicit Spread(const Shape& shape);
};

// Whether each node sums one node of the canonical tree, which is cut at powers of two.
bool are_nodes_canonical(const Shape& shape);

struct Facts {
  int ranks = 1;
  bool one_node = true;  // all ranks see each other's memory
  uint64_t bytes = 0;
  bool wide_sums = false;  // partial sums are twice as long as contributions
  bool canonical = false;
  std::span<const Forced> forced = {};
  std::optional<uint64_t> segment_bytes;  // RDMACOLL_SEGMENT_BYTES
  Spread spread = {};
  bool is_even = false;        // exchange: all parts of all ranks have one size
  int servers = 0;             // separate servers, which make all sums
  bool on_gpus = false;        // the ranks of the node read and sum each other's data on GPUs
  bool stages_gpus = false;    // tensors on GPUs are copied through host memory
  CopyCosts gpu_copies = {};   // for that, if they were measured
  bool in_place = false;       // peers read the callers' memory
  bool shares_result = false;  // ranks of the node share the result, if it has one writer
};

struct Choice {
  Algorithm algorithm = Algorithm::none;
  uint64_t segment_bytes = 0;
  std::string_view reason = "there is nothing to move";
};

// The work of a choice between nodes: steps of traffic that are told, and events of its execution.
struct ChoiceWork {
  uint64_t told = 0, executed = 0;
};

// Chooses the cheapest algorithm with this result by the rows' formulas, unless one is forced.
// Between nodes, sizes that differ by less than an eighth have the same choice.
//
// `work` counts what the formulas between nodes take, if it is not null.
Choice choose(AlgorithmRow::Result result, const Tuning& tuning, const Facts& facts,
              ChoiceWork* work = nullptr);

// The same for the operations of one world, with the same links, spread and forced algorithms. It
// remembers choices between nodes, since formulas for many ranks take long.
class Choices {
 public:
  Choice choose(AlgorithmRow::Result result, const Tuning& tuning, const Facts& facts);

 private:
  using Key = std::tuple<AlgorithmRow::Result, uint64_t, bool, bool, bool>;
  std::map<Key, const AlgorithmRow*> found_;
};

// Within a node: the other algorithms that may be as fast as the choice, the cheapest first. They
// add in canonical order. None if an algorithm is forced.
std::vector<Choice> rivals_in_node(const Choice& choice, const Tuning& tuning, const Facts& facts);

// Why the algorithm is no candidate for this operation, or "": it is one.
std::string_view why_no_candidate(const AlgorithmRow& row, const Tuning& tuning,
                                  const Facts& facts);
// The cost of a candidate by its row's formula, in microseconds. Infinity: within a node, it only
// runs if it is forced.
double formula_us(const AlgorithmRow& row, const Tuning& tuning, const Facts& facts);

// Bytes of a rank. An exchange's parts are those that a rank gives and those that it gets.
double row_bytes_of_rank(AlgorithmRow::Result result, const Facts& facts);
double segments_of(double bytes, uint64_t segment_bytes);

// Bytes of a segment with this algorithm.
uint64_t segment_bytes_of(Algorithm algorithm, const Tuning& tuning, const Facts& facts);

// Whether the choice adds in canonical order here.
bool adds_in_canonical_order(const Choice& choice, const Facts& facts);

}  // namespace rdmacoll
