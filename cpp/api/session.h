// One rank's engine and everything it needs. The members are destroyed in reverse order.
#pragma once

#include <memory>
#include <mutex>
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
#include "memory/device_memory.h"
#include "memory/pool.h"
#include "probe/machine_profile.h"
#include "settings/settings.h"

namespace rdmacoll {

namespace cuda {
class CudaMemory;
}

// The parts of the machine that tests replace.
struct SessionMachine {
  std::vector<TransportRow> transports;  // as in FabricOptions
  std::string sys = "/sys";              // as in cuda::SystemRoots
  std::string proc = "/proc";
};

class Session {
 public:
  static Status open(int rank, int size, std::string job, std::vector<std::byte> secret,
                     std::string_view arguments, std::unique_ptr<Session>& session,
                     SessionMachine machine = {});
  ~Session();

  const std::string& card() const { return fabric_->card(); }
  Fabric& fabric() { return *fabric_; }
  Status probe_node(const std::vector<std::string>& cards, int& leader);
  // After probe_node. At the leader of a node of several ranks: the profile of its machine, which
  // is measured if it is not kept yet. "": of the other ranks, or without a profile.
  std::string profile() const;
  // Before start(): the profiles of all ranks. Those of rank 0 decide, so the others ignore them.
  void set_profiles(const std::vector<std::string>& profiles);
  // Connects the world. Returns busy() after `timeout`; call it again then. kNever: only the limit
  // of the settings. After success it returns an error if a rank was lost meanwhile.
  Status start(const std::vector<int>& leaders, Nanoseconds timeout = kNever);
  // Like engine.forward_rendezvous() in rdmacoll_c.h.
  int forward_rendezvous();
  // At a parameter server: serves until every worker has left, in slices like start(). `left`: the
  // workers' causes by rank, as a JSON object. "" is a clean end.
  Status serve(Nanoseconds timeout, std::string& left);
  void close(const std::string& cause);
  // Like engine.blame() in rdmacoll_c.h.
  bool blame(int rank, const std::string& sentence, const std::string& cause);

  // Returns NotInitializedError before start(), and in a forked child.
  Status usable() const;
  Driver& driver() { return *driver_; }
  // Sets the root as a rank of its set, and disables shared results if the settings do.
  Status resolve(JobRank root, Request& request) const;
  SetRank rank_in(uint32_t set) const { return engine_->rank_in(set, JobRank(rank_)); }
  Status check(const Request& request) const { return engine_->check(request); }
  // Like operation.refuse() in rdmacoll_c.h.
  void refuse(Request request);
  // Process sets, as in rdmacoll_c.h.
  Status add_set(const std::vector<JobRank>& ranks, uint32_t& number);
  Status remove_set(uint32_t number, Nanoseconds timeout);
  std::size_t in_flight(uint32_t set);
  // Like engine.timeline() in rdmacoll_c.h.
  Status set_timeline(const std::string& path);
  // Registers the memory of a prepared operation with the devices. Memory that they do not accept
  // is copied in each run.
  std::vector<Piece> pin(const Request& request);
  void unpin(const std::vector<Piece>& pinned);
  // Memory of GPUs. The first call opens the GPU driver. Fails if there is none. Any thread.
  Status device_memory(DeviceMemory*& memory);
  // Like engine.gpu_allocate() in rdmacoll_c.h.
  Status allocate(int gpu, uint64_t bytes, std::shared_ptr<std::byte[]>& memory);
  // Like engine.gpu_copy() in rdmacoll_c.h.
  Status copy(std::span<const HostCopy> copies, CopyTo to, int gpu, uint64_t stream);
  const std::shared_ptr<MemoryPool>& pool() { return pool_; }
  const World& world() const { return world_; }  // empty before start()
  int size() const { return size_; }
  // Like engine.topology() in rdmacoll_c.h.
  void topology(int32_t out[6]) const;
  std::string metrics();
  std::string describe();
  std::string state();

 private:
  Session() = default;
  Status set_up(const std::vector<int>& leaders);
  void log_waiting();
  LinkModel links() const;
  void log_transport() const;
  Status check_forced_way() const;
  Status look_at_gpus();
  std::string gpu_summary();
  std::unique_ptr<Compute> make_compute(int cores, const LinkModel& links) const;
  DriverOptions driver_options(const Oversubscription& oversubscription, int cores) const;

  SteadyClock clock_;
  SessionMachine machine_;
  Config config_;
  std::vector<SettingValue> settings_;
  Log log_;
  int rank_ = 0;
  int size_ = 1;
  bool leads_node_ = false;        // this rank leads one of several ranks
  probe::MachineProfile profile_;  // at rank 0: the slowest one of all nodes
  World world_;
  std::shared_ptr<MemoryPool> pool_;  // shared with lent memory, which may outlive the session
  std::unique_ptr<Fabric> fabric_;
  std::vector<std::string> said_of_gpus_;  // warnings of lost direct ways, logged at the start
  std::mutex device_memory_mutex_;
  std::unique_ptr<cuda::CudaMemory> device_memory_;  // null until a request names a stream
  std::unique_ptr<Compute> compute_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<Driver> driver_;
  std::unique_ptr<Timeline> first_timeline_;  // until the engine takes it
  std::string timeline_path_;                 // the file that the engine writes
  Status set_up_result_ = Status::busy();     // the result of set_up()
  Nanoseconds start_deadline_ = kNever;
  Nanoseconds waiting_logged_at_ = 0;  // when start() last reported its waiting
  bool is_started_ = false;            // start() has succeeded
  bool closed_ = false;
};

// Whether this process was forked from one with an engine. The engine stays with the parent.
bool is_forked_child();
Status refuse_forked_child();

// Creates the pool of the configured size, or of the default size as far as limits allow. `note`: a
// message if it is smaller. `ranks`: size of the world. Sets config.pool_bytes to the size.
Status create_pool(Config& config, int ranks, std::unique_ptr<MemoryPool>& pool, std::string& note);

// The number of cores that this process may use.
int cores_allowed();

}  // namespace rdmacoll
