// A world of two ranks of a job, for as long as the path between them is measured: of its own, so
// that a broken path spoils no other.
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
  // `place`: 0 leads, 1 follows. `numbers`: the two ranks in the job, by place, for sentences.
  // `arguments` as of Session::open.
  static Status open(int place, std::array<int, 2> numbers, std::string job,
                     std::vector<std::byte> secret, std::string_view arguments,
                     std::unique_ptr<PairSession>& session);

  const std::string& card() const { return fabric_->card(); }
  // As Fabric::probe_node, with places.
  Status probe_node(const std::array<std::string, 2>& cards, int& leader);
  // Connects and measures; the JSON keys are in rdmacoll_c.h. Returns within the plan's limit,
  // twice at most: once to connect.
  Status run(const std::array<int, 2>& leaders, const probe::Plan& plan, std::string& json);

 private:
  explicit PairSession(int place) : place_(place) {}
  Status connect(probe::Player& player, const probe::Setting& setting);
  void idle(Nanoseconds since, Nanoseconds until) const;
  std::string report(const std::vector<probe::Row>& rows) const;

  SteadyClock clock_;
  const int place_;
  Config config_;
  World world_;
  bool shares_a_core_ = false;  // with the other one
  std::unique_ptr<MemoryPool> pool_;
  std::unique_ptr<Fabric> fabric_;
};

}  // namespace rdmacoll
