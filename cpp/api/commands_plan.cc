// Explains a choice: the algorithm, the cost of each algorithm, and the schedule of one rank.
#include <algorithm>
#include <map>
#include <optional>

#include "api/commands.h"
#include "base/text.h"
#include "collectives/choose.h"
#include "collectives/cost.h"
#include "collectives/lower.h"

namespace rdmacoll {
namespace {

std::vector<const AlgorithmRow*> rows_of(Kind kind, int servers) {
  std::vector<const AlgorithmRow*> rows;
  for (const AlgorithmRow& row : algorithm_table()) {
    const bool is_possible = !row.by_servers || servers > 0;
    if (row.result == rdmacoll::row_of(kind).result && is_possible) rows.push_back(&row);
  }
  return rows;
}

// Null if the kind has no such algorithm.
const AlgorithmRow* algorithm_of(const PlanQuestion& question) {
  const std::vector<const AlgorithmRow*> rows = rows_of(question.kind, question.servers);
  const auto found = std::find_if(rows.begin(), rows.end(), [&](const AlgorithmRow* row) {
    return row->name == question.algorithm;
  });
  return found == rows.end() ? nullptr : *found;
}

Status check(const PlanQuestion& question) {
  if (!is_known(question.kind) || question.kind == Kind::barrier || question.kind == Kind::join) {
    return {Code::invalid, "nothing is planned for this kind of collective."};
  }
  if (question.bytes == 0) return {Code::invalid, "0 bytes need no algorithm: ask for 1 or more."};
  if (question.ranks < 1 || question.ranks > PlanQuestion::kRanksMax) {
    return {Code::invalid, cat(question.ranks, " ranks are not planned here: ask for 1 to ",
                               PlanQuestion::kRanksMax, ".")};
  }
  if (question.nodes < 1 || question.nodes > question.ranks) {
    return {Code::invalid, cat(question.ranks, " ranks cannot be on ", question.nodes,
                               " nodes: ask for 1 to ", question.ranks, ".")};
  }
  if (question.servers < 0 || question.servers > PlanQuestion::kRanksMax) {
    return {Code::invalid, cat(question.servers, " servers are not planned here: ask for 0 to ",
                               PlanQuestion::kRanksMax, ".")};
  }
  const int members = question.ranks + question.servers;
  if (question.rank < 0 || question.rank >= members) {
    return {Code::invalid, cat("there is no rank ", question.rank, " among ", members,
                               ": ask for 0 to ", members - 1, ".")};
  }
  if (!question.algorithm.empty() && algorithm_of(question) == nullptr) {
    std::vector<std::string_view> names;
    for (const AlgorithmRow* row : rows_of(question.kind, question.servers)) {
      names.push_back(row->name);
    }
    return {Code::invalid,
            cat(question.algorithm, " is no algorithm for this: ask for ", join(names, ", "), ".")};
  }
  return {};
}

// The nodes of the ranks, followed by those of the servers.
std::vector<int> nodes_of(const PlanQuestion& question) {
  std::vector<int> nodes = even_nodes(question.ranks, question.nodes);
  for (int server = 0; server < question.servers; ++server) {
    nodes.push_back(question.nodes == 1 ? 0 : question.nodes + server);
  }
  return nodes;
}

// The choice follows rules, not the cost model. Explains why the rules do not choose the `cheapest`
// algorithm of the model. It tries the rules with one fact changed, or names the origin of their
// limits.
std::string_view why_not_cheapest(const PlanQuestion& question, const Tuning& tuning,
                                  const Facts& facts, Algorithm chosen, Algorithm cheapest) {
  const auto differs = [&](const Facts& others) {
    return choose(rdmacoll::row_of(question.kind).result, tuning, others).algorithm != chosen;
  };
  Facts free = facts;
  free.forced = {};
  Facts any_order = facts;
  any_order.canonical = false;
  if (cheapest == chosen) return "";
  if (facts.servers > 0) return "parameter servers make the sums where there are some";
  if (differs(free)) return "RDMACOLL_ALLREDUCE_ALGORITHM forces the choice";
  if (differs(any_order)) return "canonical order is asked for, by RDMACOLL_ORDER";
  if (facts.one_node) {
    return "measured: within a node the cuts are those of 2 to 4 ranks on 2 cores, not the model's";
  }
  if (cheapest == Algorithm::one_shot) {
    return "measured: between hosts one round of so many messages takes no less time";
  }
  if (cheapest == Algorithm::bruck_alltoall && !facts.is_even) {
    return "it takes parts of one size, and these bytes do not divide by the ranks";
  }
  Link usual = (question.links.is_by_device ? kRdmaLinks : kTcpLinks).network;
  usual.bytes_per_us = question.links.network.bytes_per_us;
  if (question.links.network != usual) {
    return "the cuts between algorithms are made for the usual latency";
  }
  if (cheapest == Algorithm::direct && facts.ranks > tuning.direct_ranks_at_once &&
      facts.bytes > tuning.direct_bytes_at_once) {
    return question.links.is_by_device
               ? "more send to one port at once than the model knows of"
               : "measured: so many hosts that send to one at once take up to five times as long";
  }
  if (cheapest == Algorithm::direct && !question.links.is_by_device &&
      facts.bytes > tuning.direct_bytes_network) {
    return "measured: between hosts a ring took 3 to 40% less than direct for as much";
  }
  return "the rules that choose have few and round cuts";
}

std::string quoted(std::string_view name, std::string_view text) {
  return cat("\"", name, "\": ", json_quote(text));
}

}  // namespace

Status plan_json(const PlanQuestion& asked, const Config& config, std::string& json) {
  RC_RETURN_IF_ERROR(check(asked));
  PlanQuestion question = asked;
  if (!asked.has_rate && config.link_gbit) {
    const auto gbit = static_cast<double>(*config.link_gbit);
    question.links.network.bytes_per_us =
        usual_links(asked.links.is_by_device, gbit).network.bytes_per_us;
  }
  const std::vector<int> nodes = nodes_of(question);
  const bool is_wide = has_wide_sums(question.kind, question.dtype, ReduceOp::sum);
  Shape shape{.ranks = question.ranks, .rank = question.rank, .nodes = nodes, .wide_sums = is_wide};
  std::vector<Forced> forced;
  for (const AlgorithmRange& range : config.allreduce_algorithms) {
    forced.push_back({algorithm_from(range.algorithm), range.bytes_max});
  }
  const Tuning tuning = tuning_for(question.links);
  const auto ranks = static_cast<uint64_t>(question.ranks);
  const bool is_exchange = question.kind == Kind::alltoall;
  const Facts facts{.ranks = question.ranks,
                    .one_node = question.nodes == 1,
                    .bytes = question.bytes * (is_exchange ? ranks : 1),
                    .wide_sums = is_wide,
                    .canonical = config.canonical,
                    .forced = forced,
                    .segment_bytes = config.segment_bytes,
                    .spread = Spread(shape),
                    .is_even = question.bytes % ranks == 0,
                    .servers = question.servers};
  const Choice choice = choose(rdmacoll::row_of(question.kind).result, tuning, facts);
  const Algorithm shown =
      question.algorithm.empty() ? choice.algorithm : algorithm_of(question)->algorithm;
  // Devices need pinned memory. Otherwise peers read the caller's memory if this is worth a system
  // call.
  const bool is_visible =
      tuning.reads_in_place(rdmacoll::row_of(question.kind).result, question.bytes) &&
      (facts.one_node || !question.links.is_by_device);
  const bool adds = is_sum(rdmacoll::row_of(question.kind).result);
  std::vector<std::string> costs;
  std::map<double, Algorithm> by_time;
  std::string written, lowered;
  for (const AlgorithmRow* row : rows_of(question.kind, question.servers)) {
    shape.servers = row->by_servers ? question.servers : 0;
    const uint64_t segment_bytes = segment_bytes_of(row->algorithm, tuning, facts);
    const std::vector<Schedule> schedules =
        lowered_schedules(row->algorithm, shape, question.links, is_visible);
    const uint64_t bytes = row_bytes(row->result, schedules.front(), question.bytes);
    const Cost cost = cost_of(schedules, std::span(nodes).first(schedules.size()), question.links,
                              bytes, segment_bytes);
    costs.push_back(cat("{", quoted("algorithm", row->name), ", \"time_us\": ", cost.time_us,
                        ", \"messages\": ", cost.messages, ", \"network_bytes\": ",
                        cost.network_bytes, ", \"segment_bytes\": ", std::min(segment_bytes, bytes),
                        ", \"segments\": ", (bytes + segment_bytes - 1) / segment_bytes,
                        ", \"parts\": ", schedules.front().parts, ", \"canonical\": ",
                        !adds                      ? "null"
                        : row->is_canonical(shape) ? "true"
                                                   : "false",
                        "}"));
    const auto [same, is_new] = by_time.try_emplace(cost.time_us, row->algorithm);
    if (row->algorithm == choice.algorithm) same->second = choice.algorithm;
    if (row->algorithm != shown || question.rank >= shape.members()) continue;
    written = to_text(row->make(shape));
    lowered = to_text(schedules[static_cast<std::size_t>(question.rank)]);
  }
  const Algorithm cheapest = by_time.begin()->second;
  json = cat("{", quoted("algorithm", name_of(choice.algorithm)), ", ",
             quoted("reason", choice.reason), ", ", quoted("cheapest", name_of(cheapest)), ", ",
             quoted("why_not_cheapest",
                    why_not_cheapest(question, tuning, facts, choice.algorithm, cheapest)),
             ", ", quoted("shown", name_of(shown)), ", \"nodes\": [", join(nodes, ", "),
             "], \"costs\": [", join(costs, ", "), "], ", quoted("schedule", written), ", ",
             quoted("lowered", lowered), "}");
  return {};
}

}  // namespace rdmacoll
