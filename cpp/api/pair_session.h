// A world of two ranks of a job, which exists while the path between them is measured. It is
// separate, so that a broken path harms no other world.
#pragma once

#include <array>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/config.h"
#include "bootstrap/fabric.h"
#include "memory/pool.h"
#include "probe/pair_probe.h"

namespace rdmacoll {

class PairSession {
 public:
  // `side`: 0 leads, 1 follows. `numbers`: the two ranks in the job, by side, for messages.
  // `arguments`: as in Session::open().
  static Status open(int side, std::array<int, 2> numbers, std::string job,
                     std::vector<std::byte> secret, std::string_view arguments,
                     std::unique_ptr<PairSession>& session);

  const std::string& card() const { return fabric_->card(); }
  // Like Fabric::probe_node, with sides instead of ranks.
  Status probe_node(const std::array<std::string, 2>& cards, int& leader);
  // Connects and measures. The JSON keys are in rdmacoll_c.h. Connecting and measuring take at most
  // the plan's limit each.
  Status run(const std::array<int, 2>& leaders, const probe::Plan& plan, std::string& json);

 private:
  explicit PairSession(int side) : side_(side) {}
  Status connect(probe::TaskRunner& runner, const probe::Setting& setting);
  void idle(Nanoseconds since, Nanoseconds until) const;
  std::string report(const std::vector<probe::Row>& rows) const;

  SteadyClock clock_;
  const int side_;
  Config config_;
  World world_;
  bool shares_a_core_ = false;  // the two ranks share a core
  std::unique_ptr<MemoryPool> pool_;
  std::unique_ptr<Fabric> fabric_;
};

}  // namespace rdmacoll
