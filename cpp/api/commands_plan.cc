// What would run, and why: the choice, the cost of each algorithm, and one rank's schedule.
#include <algorithm>
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

// Null when it is none of this kind.
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

// The servers behind the ranks.
std::vector<int> nodes_of(const PlanQuestion& question) {
  std::vector<int> nodes = even_nodes(question.ranks, question.nodes);
  for (int server = 0; server < question.servers; ++server) {
    nodes.push_back(question.nodes == 1 ? 0 : question.nodes + server);
  }
  return nodes;
}

std::string quoted(std::string_view name, std::string_view text) {
  return cat("\"", name, "\": ", json_quote(text));
}

}  // namespace

Status plan_json(const PlanQuestion& question, const Config& config, std::string& json) {
  RC_RETURN_IF_ERROR(check(question));
  const std::vector<int> nodes = nodes_of(question);
  const bool is_wide =
      rdmacoll::row_of(question.kind).reduces && has_wide_sums(question.dtype, ReduceOp::sum);
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
  // A device needs pinned memory; others read the caller's where that is worth a system call.
  const bool is_visible =
      tuning.reads_in_place(rdmacoll::row_of(question.kind).result, question.bytes) &&
      (facts.one_node || !question.links.is_by_device);
  std::vector<std::string> costs;
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
                        ", \"parts\": ", schedules.front().parts,
                        ", \"canonical\": ", row->is_canonical(shape) ? "true" : "false", "}"));
    if (row->algorithm != shown || question.rank >= shape.members()) continue;
    written = to_text(row->make(shape));
    lowered = to_text(schedules[static_cast<std::size_t>(question.rank)]);
  }
  json = cat("{", quoted("algorithm", name_of(choice.algorithm)), ", ",
             quoted("reason", choice.reason), ", ", quoted("shown", name_of(shown)),
             ", \"nodes\": [", join(nodes, ", "), "], \"costs\": [", join(costs, ", "), "], ",
             quoted("schedule", written), ", ", quoted("lowered", lowered), "}");
  return {};
}

}  // namespace rdmacoll
