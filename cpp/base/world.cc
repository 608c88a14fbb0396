#include "base/world.h"

#include <algorithm>
#include <set>
#include <utility>

#include "base/status.h"
#include "base/text.h"

namespace rdmacoll {

int World::local_rank() const {
  int before = 0;
  for (int other = 0; other < rank; ++other) before += same_node(other, rank) ? 1 : 0;
  return before;
}

int World::local_size() const {
  int count = 0;
  for (int other = 0; other < size(); ++other) count += same_node(other, rank) ? 1 : 0;
  return count;
}

int World::cross_rank() const {
  std::set<int> seen;  // nodes that appear before this rank's node
  for (const Member& member : members) {
    if (member.node == members[rank].node) break;
    seen.insert(member.node);
  }
  return static_cast<int>(seen.size());
}

int World::cross_size() const {
  std::set<int> nodes;
  for (const Member& member : members) nodes.insert(member.node);
  return static_cast<int>(nodes.size());
}

std::vector<int> World::nodes() const {
  std::vector<int> nodes;
  for (const Member& member : members) nodes.push_back(member.node);
  return nodes;
}

std::vector<int> World::numa_nodes() const {
  std::vector<int> nodes;
  for (const Member& member : members) nodes.push_back(member.numa_node);
  return nodes;
}

Oversubscription World::oversubscription(int allowed) const {
  const std::vector<int>& mine = members[rank].cpus;
  const std::set<int> own(mine.begin(), mine.end());
  std::set<int> together = own;
  int all = 0, sharing = 0;
  bool is_known = true;
  for (const Member& other : members) {
    if (other.machine != members[rank].machine) continue;
    ++all;
    is_known = is_known && !other.cpus.empty();
    if (std::ranges::none_of(other.cpus, [&](int cpu) { return own.contains(cpu); })) continue;
    ++sharing;
    together.insert(other.cpus.begin(), other.cpus.end());
  }
  if (!is_known) return {.ranks = all, .cpus = allowed};
  return {.ranks = sharing, .cpus = static_cast<int>(together.size())};
}

int World::rank_of(JobRank called) const {
  for (int which = 0; which < size(); ++which) {
    if (number(which) == called) return which;
  }
  return -1;
}

JobRank World::number(int which) const {
  return members[which].number.is_none() ? JobRank(which) : members[which].number;
}

std::string World::describe(int which) const {
  if (which < 0 || which >= size()) return cat("rank ", which);
  const std::string where = cat(members[which].host, ", pid ", members[which].pid, ")");
  if (!is_server(which)) return cat("rank ", number(which), " (", where);
  return cat("server ", which - workers(), " (rank ", number(which), ", ", where);
}

std::string_view World::loss(int which) const {
  if (!members[which].stores) return "";
  return "; the variables that it stored are lost. Start again, with rdmacoll.ps.restore where "
         "rdmacoll.ps.save has been called.";
}

Status World::blaming(int which, std::string sentence, const std::string& cause) const {
  return {Code::rank_failed,
          std::move(sentence),
          {.rank = number(which),
           .host = members[which].host,
           .cause = cause,
           .tensor = {},
           .ranks = {number(which)}}};
}

Status World::failed(int which, const std::string& cause) const {
  return blaming(which, cat(describe(which), " stopped answering: ", cause, loss(which)), cause);
}

Status World::was_suspended(Nanoseconds duration, Nanoseconds timeout) const {
  const auto seconds = [](Nanoseconds time) {
    return static_cast<double>(time / kMillisecond) / 1000;
  };
  const std::string cause = cat("did not run for about ", seconds(duration),
                                " s (stopped, or without a processor): after ", seconds(timeout),
                                " s the others went on without it. Where that may happen, raise ",
                                "RDMACOLL_PEER_TIMEOUT_S.");
  return blaming(rank, cat(describe(rank), " ", cause), cause);
}

World World::of_workers() const {
  World workers = *this;
  workers.members.resize(static_cast<std::size_t>(this->workers()));
  workers.servers = 0;
  return workers;
}

int tree_parent(int rank) { return rank == 0 ? -1 : (rank - 1) / kTreeRadix; }

std::vector<int> tree_children(int rank, int size) {
  std::vector<int> children;
  const int64_t first = static_cast<int64_t>(rank) * kTreeRadix + 1;
  for (int64_t child = first; child < std::min<int64_t>(first + kTreeRadix, size); ++child) {
    children.push_back(static_cast<int>(child));
  }
  return children;
}

std::vector<int> tree_subtree(int rank, int size) {
  std::vector<int> subtree = {rank};
  // Level by level: children of ascending ranks ascend, so the list stays sorted as it grows.
  for (std::size_t next = 0; next < subtree.size(); ++next) {
    for (int child : tree_children(subtree[next], size)) subtree.push_back(child);
  }
  return subtree;
}

}  // namespace rdmacoll
