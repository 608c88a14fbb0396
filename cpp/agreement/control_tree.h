// The control tree around one rank of a set. Sends messages along it.
#pragma once

#include <vector>

#include "agreement/agreement_host.h"
#include "agreement/messages.h"
#include "base/set_world.h"

namespace rdmacoll {

class ControlTree {
 public:
  // `servers`: the number of servers.
  ControlTree(const SetWorld& world, int servers, AgreementHost& host);

  bool is_root() const { return world_.is_root(); }
  bool is_leaf() const { return children_.empty(); }
  bool is_server() const { return world_.is_server(); }
  // The rank that sends decisions to this one.
  SetRank above() const { return parent_; }

  void post_up(const Message& message) { host_.post(parent_, message); }
  void post_down(const Message& message);
  // Sends the decision to the children. For an alltoall, each child receives the row counts of its
  // subtree. Returns false if a row of the table has the wrong length.
  bool post_decision(const Decision& decision);
  // To the parent and the children, but not to `except`.
  void post_around(const Message& message, SetRank except);
  void post_servers(const Message& message);
  // Root: servers receive all decisions, to count their sequence, but without rows.
  void tell_servers(const Decision& decision);

 private:
  const SetWorld& world_;
  const int servers_;
  AgreementHost& host_;
  const SetRank parent_;  // the root at a server, and at the root itself
  const std::vector<SetRank> children_;
};

}  // namespace rdmacoll
