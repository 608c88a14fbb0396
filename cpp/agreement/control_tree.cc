#include "agreement/control_tree.h"

#include "operation/cut.h"

namespace rdmacoll {

ControlTree::ControlTree(const SetWorld& world, int servers, AgreementHost& host)
    : world_(world),
      servers_(servers),
      host_(host),
      parent_(is_server() || is_root() ? kTreeRoot : tree_parent(world.rank())),
      children_(tree_children(world.rank(), world.size())) {}

void ControlTree::post_down(const Message& message) {
  for (SetRank child : children_) host_.post(child, message);
}

bool ControlTree::post_decision(const Decision& decision) {
  if (decision.most_rows == 0) {
    post_down(decision);
    return true;
  }
  const std::vector<SetRank> mine = tree_subtree(world_.rank(), world_.size());
  Decision narrowed = decision;
  for (SetRank child : children_) {
    const std::vector<SetRank> below = tree_subtree(child, world_.size());
    if (!columns_of(decision.rows, mine, below, narrowed.rows)) return false;
    host_.post(child, narrowed);
  }
  return true;
}

void ControlTree::post_around(const Message& message, SetRank except) {
  if (!is_root() && parent_ != except) host_.post(parent_, message);
  for (SetRank child : children_) {
    if (child != except) host_.post(child, message);
  }
}

void ControlTree::post_servers(const Message& message) {
  for (int server = 0; server < servers_; ++server) {
    host_.post(SetRank(world_.size() + server), message);
  }
}

void ControlTree::tell_servers(const Decision& decision) {
  if (servers_ == 0) return;
  Decision told = decision;
  told.rows.clear();
  told.most_rows = 0;
  post_servers(told);
}

}  // namespace rdmacoll
