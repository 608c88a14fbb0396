#include "collectives/choose.h"
#include "collectives/corrections.h"
#include "collectives/in_node.h"
#include "collectives/shared_stages.h"
#include "collectives/traffic.h"

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
  const double work = (peers + 1) * node.pack(part) + node.messages(4 * peers, part) +
                      node.sum(part, peers) + peers * node.read(part);
  return node.time(work, 2 * node.round(peers, part) + node.round());
}

// Many senders to one port hold each other up, which the model does not know. AMD EPYC, 2026-11-25:
// docs/measurements/2026-11-25-measured-otherwise.md. RDMA has the same limit until it is measured.
std::string_view correction_of_direct(const Tuning& tuning, const Facts& facts) {
  if (facts.one_node) return "";
  const LinkModel& links = tuning.links;
  const int most_ranks = links.via_nic ? 8 : 6;
  const uint64_t most_bytes = links.via_nic ? 1 << 20 : 256 << 10;
  if (facts.ranks > most_ranks && facts.bytes > most_bytes) {
    return links.via_nic ? "more ranks would send to one port at once than the cost model covers"
                         : "measured: transfers take up to five times as long if so many hosts "
                           "send to one host at once";
  }
  if (is_for_ring(links, facts)) {
    return "measured: at this size a ring between hosts took 3 to 40% less time than direct";
  }
  return "";
}

void direct_traffic(Traffic& traffic) {
  traffic.nodes_are_alike(true);
  direct_sums(traffic);
  direct_copies(traffic);
}

}  // namespace

extern constinit const AlgorithmRow direct_row{.algorithm = Algorithm{2},
                                               .name = "direct",
                                               .make = direct_allreduce,
                                               .result = AlgorithmRow::Result::sum,
                                               .cost_in_node = direct_in_node,
                                               .traffic = direct_traffic,
                                               .correction = correction_of_direct,
                                               .segments = Segments::stages,
                                               .has_one_writer = true,
                                               .other_names = "pscpu psgpu"};

}  // namespace rdmacoll
