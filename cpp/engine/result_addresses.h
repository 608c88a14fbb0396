// Results that all ranks of a node share. The first member chooses their address in its pool when
// it begins the sum, and sends it to the other ranks and the servers. These wait for the message.
// All ranks know which sums have shared results. The message may also say that there is no room. A
// rank that cannot map the first member's pool uses its own memory, and both ranks know this.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include "agreement/complete_decision.h"
#include "agreement/messages.h"
#include "agreement/situation.h"
#include "base/set_world.h"
#include "base/world.h"
#include "engine/set_host.h"
#include "execution/planner.h"
#include "memory/pool.h"
#include "memory/shared_results.h"
#include "transport/transport.h"

namespace rdmacoll {

class ResultAddresses {
 public:
  struct Parts {
    uint32_t set = 0;
    const World& job;
    const SetWorld& world;
    const SetMembers& members;
    bool is_one_node = false;  // including the servers
    Transport& transport;
    MemoryPool& pool;
    SharedResults& results;
    SetHost& host;
    const Situation& now;
  };
  explicit ResultAddresses(const Parts& parts) : parts_(parts) {}

  // Finds the address of the decision's results, if they are shared. Requires connected peers.
  // Returns false while the first member's message is missing, and if the world has ended.
  bool find(const CompleteDecision& decision, SharedResult& result);
  // The first member's message. Returns false if this rank cannot expect it.
  bool take(JobRank peer, const ResultAddressMessage& message);

 private:
  bool shares_results(const CompleteDecision& decision) const;
  bool shares_pool(JobRank peer) const;  // false for a rank that is not connected
  bool find_announced(const CompleteDecision& decision, const ResultOffsets& offsets,
                      SharedResult& result);
  void offer(const CompleteDecision& decision, std::size_t block_bytes, SharedResult& result);
  void hold(const CompleteDecision& decision, const PeerPool& pool, uint64_t offset,
            std::size_t block_bytes, SharedResult& result);
  bool is_root() const { return parts_.world.is_root(); }
  JobRank root() const { return parts_.members[kTreeRoot]; }

  const Parts parts_;
  std::map<uint64_t, uint64_t> announced_;  // offsets that the first member has sent, by sequence
};

}  // namespace rdmacoll
