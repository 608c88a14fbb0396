// The ranks of a world. A value: a restart is a new World with the next epoch and a new Engine.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/status.h"

namespace rdmacoll {

struct Member {
  std::string host;
  int64_t pid = 0;
  int node = 0;         // ranks of equal node reach each other's abstract Unix sockets
  JobRank number = {};  // its rank in the job, if this world is a part of one; none: its rank here
  int numa_node = -1;   // the NUMA node of its node that it is bound to; -1: none
  bool stores = false;  // an asynchronous parameter server: variables are lost with it
  int machine = -1;     // members of equal machine share its CPUs; a container may be a node
  std::vector<int> cpus = {};  // CPUs that it may run on; empty: unknown
};

// Oversubscription: the ranks of a machine that share a CPU with one rank, that rank included, and
// the number of CPUs that they may use together.
struct Oversubscription {
  int ranks = 1;
  int cpus = 1;

  bool is_oversubscribed() const { return ranks > cpus; }
  double cores_per_rank() const { return static_cast<double>(cpus) / ranks; }
};

struct World {
  std::string job;     // names the job on every connection
  uint32_t epoch = 0;  // is in every header
  int rank = 0;
  std::vector<Member> members;  // by rank
  std::string part = {};        // " of process set 3" if it is a part of a job, for sentences
  // Parameter servers are the last members. They have no data, and sum that of the other members,
  // the workers. A worker thus has the same rank in the job and among the workers.
  int servers = 0;

  int size() const { return static_cast<int>(members.size()); }
  int workers() const { return size() - servers; }
  bool is_server(int which) const { return which >= workers(); }
  bool same_node(int a, int b) const { return members[a].node == members[b].node; }
  int local_rank() const;  // position among the ranks of this node
  int local_size() const;
  int cross_rank() const;  // position of this node among the nodes, by first appearance
  int cross_size() const;
  std::vector<int> nodes() const;  // by rank
  std::vector<int> numa_nodes() const;
  // Oversubscription around this rank. If a rank of the machine does not report its CPUs, all ranks
  // count, and the `allowed` CPUs of this rank.
  Oversubscription oversubscription(int allowed) const;
  JobRank number(int rank) const;     // the rank's number in sentences and errors
  int rank_of(JobRank number) const;  // the first rank with this number, or -1
  // "rank 3 (node7, pid 4711)", "server 1 (rank 5, node7, pid 4712)"
  std::string describe(int rank) const;
  // A status that blames a rank for a failure, with a sentence about it.
  Status blaming(int rank, std::string sentence, const std::string& cause) const;
  // A status that says that the rank stopped answering.
  Status failed(int rank, const std::string& cause) const;
  // A status that says that this rank did not run for `duration`, longer than its peers'
  // `timeout`.
  Status was_suspended(Nanoseconds duration, Nanoseconds timeout) const;
  // The end of a sentence about a failed rank: the data that is lost with it, or "".
  std::string_view loss(int rank) const;
  World of_workers() const;  // without servers; `rank` stays, even if it is a server
};

// The control tree: a k-ary heap order over ranks, root 0. Up to kTreeRadix + 1 ranks are one hop
// apart.
inline constexpr int kTreeRadix = 16;
int tree_parent(int rank);  // -1 at the root
std::vector<int> tree_children(int rank, int size);
std::vector<int> tree_subtree(int rank, int size);  // rank itself and all below it, ascending

}  // namespace rdmacoll
