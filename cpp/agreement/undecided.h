// The operations of this rank that have no decision yet. The rank announces them to the others.
#pragma once

#include <map>

#include "agreement/agreement_host.h"
#include "agreement/control_tree.h"
#include "agreement/descriptor_table.h"
#include "agreement/messages.h"
#include "agreement/readiness.h"
#include "agreement/said_names.h"
#include "agreement/situation.h"
#include "base/set_world.h"
#include "base/status.h"
#include "operation/operation.h"

namespace rdmacoll {

using Operations = std::map<UnitKey, OperationRef>;

class Undecided {
 public:
  struct Parts {
    const SetWorld& world;
    const Situation& now;
    const ControlTree& tree;
    const DescriptorTable& table;
    SaidNames& names;
    Readiness& readiness;
    AgreementHost& host;
    const SetRank& last_sender;  // it sent the last message that was taken
  };
  explicit Undecided(const Parts& parts) : parts_(parts) {}

  // The key of a join. No operation has it.
  static const UnitKey& join_key();

  Operations& all() { return all_; }
  const Operations& all() const { return all_; }
  bool empty() const { return all_.empty(); }
  bool has_joined() const { return all_.contains(join_key()); }
  void add(const OperationRef& operation) { all_[key_of(*operation)] = operation; }
  OperationRef take(const UnitKey& key);     // null if there is none
  bool is_on_gpu(const UnitKey& key) const;  // has tensors on a GPU

  // Adds the operation to the readiness of this rank.
  void announce(const OperationRef& operation);
  void announce(const ReadyRecord& record);
  void announce_all();   // without the join
  void announce_join();  // if this rank has joined

 private:
  const Parts parts_;
  Operations all_;
};

}  // namespace rdmacoll
