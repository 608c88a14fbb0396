// Who takes part. A value: a restart is a new World with the next epoch and a new Engine.
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
  int number = -1;      // its rank in the job, where this world is a part of one; -1: its rank here
  int numa_node = -1;   // of its node, that it is bound to; -1: to none
  bool stores = false;  // variables, which are lost with it: asynchronous parameter servers do
  int machine = -1;     // members of equal machine share its CPUs; a container may be a node
  std::vector<int> cpus = {};  // that it may run on; empty: unknown
};

// Ranks of a machine that may run on CPUs of one of them, itself among them, and how many CPUs all
// of these may run on.
struct Crowd {
  int ranks = 1;
  int cpus = 1;

  bool is_crowded() const { return ranks > cpus; }
};

struct World {
  std::string job;     // names the job on every connection
  uint32_t epoch = 0;  // in every header
  int rank = 0;
  std::vector<Member> members;  // by rank
  std::string part = {};        // " of process set 3" where it is a part of a job, for sentences
  // Parameter servers, the last members: they have no data, and sum what the others have, the
  // workers. So a worker has one rank, in the job and among the workers.
  int servers = 0;

  int size() const { return static_cast<int>(members.size()); }
  int workers() const { return size() - servers; }
  bool is_server(int which) const { return which >= workers(); }
  bool same_node(int a, int b) const { return members[a].node == members[b].node; }
  int local_rank() const;  // position among the ranks of my node
  int local_size() const;
  int cross_rank() const;  // position of my node among the nodes, by first appearance
  int cross_size() const;
  std::vector<int> nodes() const;  // of each rank
  std::vector<int> numa_nodes() const;
  // About this rank. Where one of its machine does not say what it may use all of them count, and
  // the `allowed` CPUs of this one.
  Crowd crowd(int allowed) const;
  int number(int rank) const;     // what sentences call it
  int rank_of(int number) const;  // the first that they call so, or -1
  // "rank 3 (node7, pid 4711)", "server 1 (rank 5, node7, pid 4712)"
  std::string describe(int rank) const;
  // A sentence about a rank, which is to blame for what failed.
  Status blaming(int rank, std::string sentence, const std::string& cause) const;
  // It stopped answering.
  Status failed(int rank, const std::string& cause) const;
  // This rank itself did not run for so long that its peers, who wait for `patience`, went on.
  Status was_stopped(Nanoseconds gap, Nanoseconds patience) const;
  // What is lost with a rank, for the end of a sentence that says how it went.
  std::string_view loss(int rank) const;
  World of_workers() const;  // without the servers; the rank stays, though it may be one of them
};

// The control tree: a k-ary heap order over ranks, root 0; one hop up to kTreeRadix + 1 ranks.
inline constexpr int kTreeRadix = 16;
int tree_parent(int rank);  // -1 at the root
std::vector<int> tree_children(int rank, int size);
std::vector<int> tree_subtree(int rank, int size);  // rank itself and all below it, ascending
int tree_child_towards(int ancestor,
                       int rank);  // the child of `ancestor` whose subtree holds `rank`

}  // namespace rdmacoll
