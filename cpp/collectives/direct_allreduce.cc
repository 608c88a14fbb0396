#include "collectives/choose.h"
#include "collectives/halves.h"
#include "collectives/in_node.h"
#include "collectives/ranges.h"

namespace rdmacoll {

// Allreduce. Rank k collects part k from all ranks, reduces once in canonical order, and sends the
// sum to all ranks: two rounds of p-1 messages each.
Schedule direct_allreduce(const Shape& shape) {
  Builder program(shape, shape.ranks);
  direct_sums(program, shape, program.output(shape.rank));
  direct_copies(program, shape);
  return program.finish();
}

namespace {

double direct_in_node(const InNode& node) {
  const int peers = node.ranks() - 1;
  const double part = node.part();
  const double work = (peers + 1) * node.pack(part) + node.messages(4 * peers) +
                      node.sum(part, peers) + peers * node.read(part);
  return node.time(work, 2 * node.round(peers) + node.round());
}

// Whether two rounds of p-1 messages each pay.
bool is_of_middle_size(const Tuning& tuning, const Facts& facts) {
  const auto ranks = static_cast<uint64_t>(facts.ranks);
  const bool is_worth_messages = facts.ranks <= tuning.direct_ranks_network ||
                                 facts.bytes >= tuning.direct_bytes_pair * ranks * ranks;
  const uint64_t most = facts.ranks <= tuning.direct_ranks_at_once ? tuning.direct_bytes_network
                                                                   : tuning.direct_bytes_at_once;
  return is_worth_messages && facts.bytes <= most;
}

std::string_view prefers_direct(const Tuning& tuning, const Facts& facts) {
  if (is_of_middle_size(tuning, facts)) return "middle size: two rounds";
  if (facts.ranks > tuning.direct_ranks_at_once) return "";
  if (facts.canonical) return "canonical order: each sum is made at one place";
  if (has_wide_partials(facts)) {
    return "16-bit floats: direct sends no partial sums, which would travel as float32";
  }
  return "";
}

// AMD EPYC, 2026-11-25: docs/measurements/2026-11-25-measured-otherwise.md.
std::string_view correction_of_direct(const Tuning& tuning, const Facts& facts, bool via_nic) {
  if (facts.one_node) return "";
  if (facts.ranks > tuning.direct_ranks_at_once && facts.bytes > tuning.direct_bytes_at_once) {
    return via_nic ? "more ranks would send to one port at once than the cost model covers"
                   : "measured: transfers take up to five times as long if so many hosts send to "
                     "one host at once";
  }
  if (!via_nic && facts.bytes > tuning.direct_bytes_network) {
    return "measured: at this size a ring between hosts took 3 to 40% less time than direct";
  }
  return "";
}

}  // namespace

extern constinit const AlgorithmRow direct_row{.algorithm = Algorithm{2},
                                               .name = "direct",
                                               .make = direct_allreduce,
                                               .result = AlgorithmRow::Result::sum,
                                               .cost_in_node = direct_in_node,
                                               .preferred = prefers_direct,
                                               .correction = correction_of_direct,
                                               .segments = Segments::stages,
                                               .has_one_writer = true,
                                               .other_names = "pscpu psgpu"};

}  // namespace rdmacoll
