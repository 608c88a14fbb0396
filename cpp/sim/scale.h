// How long steps of a training take on so many ranks: the real engines, stepped under a virtual
// clock on modelled links. Where ranks are many, bytes have a size and no content.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/link_model.h"
#include "base/status.h"

namespace rdmacoll {

struct ScaleQuestion {
  static constexpr int kRanksMax = 4096;
  static constexpr int kMovingRanksMax = 64;

  int ranks = 2;
  int node_ranks = 1;
  LinkModel links;
  std::string algorithm;  // "": the one that the engine chooses
  // A step: operations of so many bytes (of float32), submitted so long after its begin.
  std::vector<uint64_t> bytes;
  std::vector<double> ready_us;
  // Of one step, about: more would take too long, and are not simulated.
  uint64_t transfers_max = 4'000'000;

  // Bytes are moved, and sums compared, up to kMovingRanksMax ranks and so many bytes of all.
  uint64_t moving_bytes_max = 64 << 20;

  bool moves_bytes() const;
};

struct ScaleAnswer {
  uint64_t transfers = 0;     // of a step, about
  bool is_simulated = false;  // false: they are too many
  double time_us = 0;         // of a step that follows a plan, until all ranks have it all
  std::vector<std::string> algorithms;  // by operation
  bool is_checked = false;              // bytes were moved, and sums are right
};

// An error: what is wrong with the question.
Status simulate_scale(const ScaleQuestion& question, ScaleAnswer& answer);

}  // namespace rdmacoll
