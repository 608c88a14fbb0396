// The times that the model predicts within a node, beside measured ones.
#include <gtest/gtest.h>

#include <string_view>
#include <vector>

#include "collectives/choose.h"
#include "collectives/cost.h"
#include "probe/machine_profile.h"

namespace rdmacoll {
namespace {

// AMD EPYC (family 25, model 17: Zen 4), two cores of a virtual machine that have an L3 each:
// docs/measurements/2026-11-29-predictions.md.
probe::MachineProfile zen_4() {
  return {.cores = 2,
          .l2_bytes = 1 << 20,
          .l3_bytes = 32 << 20,
          .l3_cores = 2,
          .copy_l2 = 56'888,
          .copy_l3 = 49'017,
          .copy_memory = 21'178,
          .copy_memory_all = 41'550,
          .sum_l2 = 57'437,
          .sum_l3 = 47'766,
          .sum_memory = 20'324,
          .sum_memory_all = 32'434,
          .busy_cores = 2,
          .one_copy_call_ns = 1'129,
          .one_copy_page_ns = 152,
          .one_copy_rate = 27'208,
          .peer_copy = 17'544,
          .line_ns = 210,
          .switch_ns = 1'172,
          .wake_ns = 23'193};
}

struct Measured {
  int ranks;
  uint64_t bytes;
  double us;
  std::string_view algorithm = "direct";
};
constexpr Measured kMeasured[] = {
    {2, 64 << 10, 8.1, "recursive_doubling"},
    {2, 256 << 10, 25.9},
    {2, 1 << 20, 86.4},
    {2, 4 << 20, 352},
    {2, 16 << 20, 1680},
    {2, 64 << 20, 7627},
    {4, 64 << 10, 39.3},
    {4, 256 << 10, 84.4},
    {4, 1 << 20, 282},
    {4, 4 << 20, 1390},
    {4, 16 << 20, 6084},
    {4, 64 << 20, 24'048},
};
// Predicted over measured time. 4 ranks at 64 KiB have the least: 0.75.
constexpr double kLeast = 0.74, kMost = 1.25;

TEST(PredictionsInNode, are_right_within_a_quarter) {
  LinkModel links = probe::with_profile(usual_links(false), zen_4());
  links.memory.cores = 2;
  const Tuning tuning = tuning_for(links);
  for (const Measured& measured : kMeasured) {
    const Facts facts{.ranks = measured.ranks, .bytes = measured.bytes};
    const Choice choice = choose(AlgorithmRow::Result::sum, tuning, facts);
    EXPECT_EQ(name_of(choice.algorithm), measured.algorithm)
        << measured.ranks << " ranks, " << measured.bytes;
    const std::vector<int> nodes = even_nodes(measured.ranks, 1);
    const auto schedules = lowered_schedules(
        choice.algorithm, {.ranks = measured.ranks, .nodes = nodes}, links, false);
    const double us =
        cost_of(schedules, nodes, links, measured.bytes, choice.segment_bytes).time_us;
    EXPECT_LT(us, kMost * measured.us) << measured.ranks << " ranks, " << measured.bytes;
    EXPECT_GT(us, kLeast * measured.us) << measured.ranks << " ranks, " << measured.bytes;
  }
}

}  // namespace
}  // namespace rdmacoll
