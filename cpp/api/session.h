// One rank's engine with all that it stands on, in the order in which it lives and dies.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/config.h"
#include "base/log.h"
#include "bootstrap/fabric.h"
#include "compute/compute.h"
#include "engine/driver.h"
#include "engine/engine.h"
#include "memory/pool.h"

namespace rdmacoll {

class Session {
 public:
  static Status open(int rank, int size, std::string job, std::vector<std::byte> secret,
                     std::string_view arguments, std::unique_ptr<Session>& session);
  ~Session();

  const std::string& card() const { return fabric_->card(); }
  Fabric& fabric() { return *fabric_; }
  Status probe_node(const std::vector<std::string>& cards, int& leader);
  // Until the world stands. busy() when `timeout` (kNever: no limit but that of the settings) is
  // over before: call it again. Once the world stands it says whether a rank was lost meanwhile.
  Status start(const std::vector<int>& leaders, Nanoseconds timeout = kNever);
  // As engine_callers in rdmacoll_c.h.
  int callers();
  // At a parameter server, in slices as start(): until every worker has left. Why each of them did,
  // by rank, as a JSON object: "" is a clean end.
  Status serve(Nanoseconds timeout, std::string& left);
  void close(const std::string& cause);
  // As engine_blame in rdmacoll_c.h.
  bool blame(int rank, const std::string& sentence, const std::string& cause);

  // NotInitializedError before start(), and in a forked child.
  Status usable() const;
  Driver& driver() { return *driver_; }
  // Gives a request the numbers that its set has for ranks, and what the settings leave of its
  // wishes.
  Status place(Request& request) const;
  Status check(const Request& request) const { return engine_->check(request); }
  // As refuse() in rdmacoll_c.h.
  void refuse(Request request);
  // Process sets, as in rdmacoll_c.h.
  Status add_set(const std::vector<int>& ranks, uint32_t& number);
  Status remove_set(uint32_t number, Nanoseconds timeout);
  std::size_t in_flight(uint32_t set);
  // Shows devices the memory of an operation that will run again and again. What they do not take
  // is copied at every run.
  std::vector<Piece> pin(const Request& request);
  void unpin(const std::vector<Piece>& pinned);
  const std::shared_ptr<MemoryPool>& pool() { return pool_; }
  const World& world() const { return world_; }  // empty before start()
  int size() const { return size_; }
  // As engine_topology in rdmacoll_c.h.
  void topology(int32_t out[6]) const;
  std::string metrics();
  std::string describe() const;
  std::string state();

 private:
  Session() = default;
  Status take_up(const std::vector<int>& leaders);
  void tell_waiting();
  LinkModel links_between_nodes() const;
  void tell_transport() const;
  std::unique_ptr<Compute> make_compute(int cores, const LinkModel& links) const;
  DriverOptions driver_options(const Crowd& crowd, int cores) const;

  SteadyClock clock_;
  Config config_;
  std::vector<SettingValue> settings_;
  Log log_;
  int rank_ = 0;
  int size_ = 1;
  World world_;
  std::shared_ptr<MemoryPool> pool_;  // shared with memory that was lent, which may outlive us
  std::unique_ptr<Fabric> fabric_;
  std::unique_ptr<Compute> compute_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<Driver> driver_;
  Status taken_up_ = Status::busy();  // what take_up() came to
  Nanoseconds start_deadline_ = kNever;
  Nanoseconds told_at_ = 0;  // start() has last said what it waits for
  bool stands_ = false;      // start() has succeeded
  bool closed_ = false;
};

// Whether this process is a forked child of one that had an engine: the engine stays with the
// parent.
bool is_forked_child();
Status refuse_forked_child();

// The pool that the settings ask for, or the default one as far as limits allow; `note` says what
// is smaller. `ranks`: of the world. config.pool_bytes becomes the size.
Status create_pool(Config& config, int ranks, std::unique_ptr<MemoryPool>& pool, std::string& note);

// How many cores this process may use.
int cores_allowed();

}  // namespace rdmacoll
