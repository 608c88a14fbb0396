// Explains a choice: the algorithm, the cost of each algorithm, and the schedule of one rank.
#include <algorithm>
#include <cmath>
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
const AlgorithmRow* algorithm_of(const PlanQuery& query) {
  const std::vector<const AlgorithmRow*> rows = rows_of(query.kind, query.servers);
  const auto found = std::find_if(rows.begin(), rows.end(), [&](const AlgorithmRow* row) {
    return row->name == query.algorithm;
  });
  return found == rows.end() ? nullptr : *found;
}

Status check(const PlanQuery& query) {
  if (!is_known(query.kind) || query.kind == Kind::barrier || query.kind == Kind::join) {
    return {Code::invalid, "nothing is planned for this kind of collective."};
  }
  if (query.bytes == 0) return {Code::invalid, "0 bytes need no algorithm: give 1 or more."};
  if (query.ranks < 1 || query.ranks > PlanQuery::kRanksMax) {
    return {Code::invalid,
            cat(query.ranks, " ranks are not planned here: give 1 to ", PlanQuery::kRanksMax, ".")};
  }
  if (query.nodes < 1 || query.nodes > query.ranks) {
    return {Code::invalid, cat(query.ranks, " ranks cannot be on ", query.nodes,
                               " nodes: give 1 to ", query.ranks, ".")};
  }
  if (query.servers < 0 || query.servers > PlanQuery::kRanksMax) {
    return {Code::invalid, cat(query.servers, " servers are not planned here: give 0 to ",
                               PlanQuery::kRanksMax, ".")};
  }
  const int members = query.ranks + query.servers;
  if (query.rank < 0 || query.rank >= members) {
    return {Code::invalid, cat("there is no rank ", query.rank, " among ", members, ": give 0 to ",
                               members - 1, ".")};
  }
  if (!query.algorithm.empty() && algorithm_of(query) == nullptr) {
    std::vector<std::string_view> names;
    for (const AlgorithmRow* row : rows_of(query.kind, query.servers)) {
      names.push_back(row->name);
    }
    return {Code::invalid, cat(query.algorithm, " is no algorithm for this: choose one of ",
                               join(names, ", "), ".")};
  }
  return {};
}

// The nodes of the ranks, followed by those of the servers.
std::vector<int> nodes_of(const PlanQuery& query) {
  std::vector<int> nodes = even_nodes(query.ranks, query.nodes);
  for (int server = 0; server < query.servers; ++server) {
    nodes.push_back(query.nodes == 1 ? 0 : query.nodes + server);
  }
  return nodes;
}

// Why the choice is not the model's `cheapest` algorithm. "": it is.
std::string_view why_not_cheapest(const Tuning& tuning, const Facts& facts, Algorithm chosen,
                                  Algorithm cheapest) {
  if (cheapest == chosen) return "";
  const AlgorithmRow& row = *row_of(cheapest);
  Facts free = facts;
  free.forced = {};
  const bool is_forced = choose(row.result, tuning, free).algorithm != chosen;
  if (is_forced) return "RDMACOLL_ALLREDUCE_ALGORITHM forces the choice";
  const std::string_view why = why_no_candidate(row, tuning, facts);
  return why.empty() ? "the choice follows the formulas, which are simpler than the model" : why;
}

// "null" if the algorithm is no candidate.
std::string formula_text(const AlgorithmRow& row, const Tuning& tuning, const Facts& facts) {
  if (row.by_servers || !why_no_candidate(row, tuning, facts).empty()) return "null";
  const double cost = formula_us(row, tuning, facts);
  return std::isinf(cost) ? "null" : cat(cost);
}

std::string quoted(std::string_view name, std::string_view text) {
  return cat("\"", name, "\": ", json_quote(text));
}

}  // namespace

Status plan_json(const PlanQuery& given, const Config& config, std::string& json) {
  RC_RETURN_IF_ERROR(check(given));
  PlanQuery query = given;
  if (!given.has_rate && config.link_gbit) {
    const auto gbit = static_cast<double>(*config.link_gbit);
    query.links.network.bytes_per_us = usual_links(given.links.via_nic, gbit).network.bytes_per_us;
  }
  const std::vector<int> nodes = nodes_of(query);
  const bool is_wide = has_wide_sums(query.kind, query.dtype, ReduceOp::sum);
  Shape shape{.ranks = query.ranks, .rank = query.rank, .nodes = nodes, .wide_sums = is_wide};
  std::vector<Forced> forced;
  for (const AlgorithmRange& range : config.allreduce_algorithms) {
    forced.push_back({algorithm_from(range.algorithm), range.bytes_max});
  }
  const Tuning tuning = tuning_for(query.links);
  const auto ranks = static_cast<uint64_t>(query.ranks);
  const bool is_exchange = query.kind == Kind::alltoall;
  const AlgorithmRow::Result result = rdmacoll::row_of(query.kind).result;
  const Facts facts{.ranks = query.ranks,
                    .one_node = query.nodes == 1,
                    .bytes = query.bytes * (is_exchange ? ranks : 1),
                    .wide_sums = is_wide,
                    .canonical = config.canonical,
                    .forced = forced,
                    .segment_bytes = config.segment_bytes,
                    .spread = Spread(shape),
                    .is_even = query.bytes % ranks == 0,
                    .servers = query.servers,
                    .in_place = tuning.reads_in_place(result, query.bytes)};
  const Choice choice = choose(result, tuning, facts);
  const Algorithm shown =
      query.algorithm.empty() ? choice.algorithm : algorithm_of(query)->algorithm;
  // Devices need pinned memory. Otherwise peers read the caller's memory if this is worth a system
  // call.
  const bool is_visible = facts.in_place && (facts.one_node || !query.links.via_nic);
  const bool adds = is_sum(result);
  std::vector<std::string> costs;
  std::map<double, Algorithm> by_time;
  std::string written, lowered;
  for (const AlgorithmRow* row : rows_of(query.kind, query.servers)) {
    shape.servers = row->by_servers ? query.servers : 0;
    const uint64_t segment_bytes = segment_bytes_of(row->algorithm, tuning, facts);
    const std::vector<Schedule> schedules =
        lowered_schedules(row->algorithm, shape, query.links, is_visible);
    const uint64_t bytes = row_bytes(row->result, schedules.front(), query.bytes);
    const Cost cost = cost_of(schedules, std::span(nodes).first(schedules.size()), query.links,
                              bytes, segment_bytes);
    costs.push_back(cat("{", quoted("algorithm", row->name), ", \"time_us\": ", cost.time_us,
                        ", \"formula_us\": ", formula_text(*row, tuning, facts), ", \"messages\": ",
                        cost.messages, ", \"network_bytes\": ", cost.network_bytes,
                        ", \"segment_bytes\": ", std::min(segment_bytes, bytes),
                        ", \"segments\": ", (bytes + segment_bytes - 1) / segment_bytes,
                        ", \"parts\": ", schedules.front().parts, ", \"canonical\": ",
                        !adds                      ? "null"
                        : row->is_canonical(shape) ? "true"
                                                   : "false",
                        "}"));
    const auto [same, is_new] = by_time.try_emplace(cost.time_us, row->algorithm);
    if (row->algorithm == choice.algorithm) same->second = choice.algorithm;
    if (row->algorithm != shown || query.rank >= shape.members()) continue;
    written = to_text(row->make(shape));
    lowered = to_text(schedules[static_cast<std::size_t>(query.rank)]);
  }
  const Algorithm cheapest = by_time.begin()->second;
  json = cat(
      "{", quoted("algorithm", name_of(choice.algorithm)), ", ", quoted("reason", choice.reason),
      ", ", quoted("cheapest", name_of(cheapest)), ", ",
      quoted("why_not_cheapest", why_not_cheapest(tuning, facts, choice.algorithm, cheapest)), ", ",
      quoted("shown", name_of(shown)), ", \"nodes\": [", join(nodes, ", "), "], \"costs\": [",
      join(costs, ", "), "], ", quoted("schedule", written), ", ", quoted("lowered", lowered), "}");
  return {};
}

}  // namespace rdmacoll
