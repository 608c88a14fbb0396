// Simulates the time of training steps for many ranks. Real engines are stepped under a virtual
// clock on modelled links. With many ranks, bytes have a size but no content.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/link_model.h"
#include "base/status.h"

namespace rdmacoll {

struct ScaleQuery {
  static constexpr int kRanksMax = 4096;
  static constexpr int kMovingRanksMax = 64;

  int ranks = 2;
  int node_ranks = 1;
  LinkModel links;
  std::string algorithm;  // "": the engine chooses
  // One step: operations of these sizes in bytes (float32), submitted this long after the step
  // begins.
  std::vector<uint64_t> bytes;
  std::vector<double> ready_us;
  // The limit for the estimated transfers of one step. Larger steps are not simulated.
  uint64_t transfers_max = 4'000'000;

  // Bytes are moved, and sums checked, up to kMovingRanksMax ranks and this many bytes of all
  // ranks.
  uint64_t moving_bytes_max = 64 << 20;

  bool moves_bytes() const;
};

struct ScaleResult {
  uint64_t transfers = 0;               // estimated, for one step
  bool is_simulated = false;            // false: there are too many transfers
  double time_us = 0;                   // one planned step, until all ranks have all results
  std::vector<std::string> algorithms;  // by operation
  bool is_checked = false;              // bytes were moved, and all sums are correct
};

// Returns an error if the query is invalid.
Status simulate_scale(const ScaleQuery& query, ScaleResult& result);

}  // namespace rdmacoll
