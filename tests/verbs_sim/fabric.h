// Simulated verbs: hosts in one process and one thread, joined by a fabric whose faults a seed
// determines. The simulation shows rare cases of a real device. It produces everything that the
// specification allows. It asserts that users obey the specification.
//
// All actions happen in step(). Each direction of a queue pair does one small action when its
// random delay is over. An action is a part of a message, an acknowledgement, or a completion. So
// completions of different queue pairs and directions overtake each other. Completions of one
// direction stay in order. The same seed and the same calls give the same run.
#pragma once

#include <cstdint>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "transport/rdma/verbs.h"
#include "verbs_sim/adapters.h"

namespace rdmacoll::verbs_sim {

class SimDevice;
class SimQueuePair;

struct FabricPolicy {
  uint64_t seed = 1;
  int delay_max = 4;          // the most steps between two actions of one direction; at least 1
  double stall = 0.02;        // share of delays that are 30 times as long
  int pieces_max = 4;         // the most parts in which one message is read and lands, in any order
  double step_on_poll = 0.5;  // share of polls that find a newer completion
  double step_at_arm = 0.5;   // share of arm() calls before which a completion arrives without an
                              // event
  double full = 0;            // share of posts that take fewer requests than fit
  double acknowledgement_lost = 0.1;  // share of acknowledgements that are lost when a path dies
  bool refuses_reads = false;
  double event_lost = 0;      // share of completion events that never come
  double event_spurious = 0;  // share of arm() calls that make the channel readable without a
                              // completion
  // Without a clock, a retry takes this many steps, and a retry after RNR up to this many. With a
  // clock, both take the time of the path's settings.
  int retry_steps = 40;
  int rnr_steps = 8;
};

struct FabricCounters {
  uint64_t steps = 0;
  uint64_t sends = 0;   // arrived messages, by kind
  uint64_t writes = 0;  // with and without immediate
  uint64_t reads = 0;
  uint64_t immediates = 0;
  uint64_t bytes_sent = 0;
  uint64_t bytes_written = 0;
  uint64_t completions = 0;  // put into completion queues
  uint64_t flushed = 0;
  uint64_t errors = 0;  // completions with another error status
  uint64_t rnrs = 0;    // refusals for lack of a posted receive
  uint64_t fulls = 0;   // posts that took fewer requests than given
  uint64_t events = 0;  // completion channels made readable
  uint64_t events_lost = 0;
  uint64_t events_spurious = 0;
  uint64_t registrations = 0;
  uint64_t deregistrations = 0;
  // Messages whose memory changed between post and acknowledgement. The specification does not
  // define the arriving bytes then. A correct user keeps this at 0.
  uint64_t changed_under_way = 0;
};

// The settings with which a queue pair was connected.
struct Connected {
  std::string device;
  int port = 0;
  rdma::QueuePairLimits limits;
  rdma::PathSettings path;
};

// One host's library.
class SimVerbs final : public rdma::Verbs {
 public:
  SimVerbs(class SimFabric& fabric, int host) : fabric_(fabric), host_(host) {}

  Status list(std::vector<rdma::DeviceFacts>& devices) override;
  Status open(const rdma::OpenOptions& options, std::unique_ptr<rdma::Device>& device) override;

  // Makes list() and open() fail with this error: no library, no kernel module. An ok status
  // repairs them.
  void refuse_with(Status status) { refusal_ = std::move(status); }
  bool copies_for_forks() const override { return copies_for_forks_; }
  // Simulates a kernel too old to copy registered pages for a child.
  void shares_with_forks() { copies_for_forks_ = false; }
  // Simulates a library too old to report a GID's type.
  void hide_gid_types() { hides_gid_types_ = true; }

 private:
  rdma::DeviceFacts seen(const Adapter& adapter) const;

  SimFabric& fabric_;
  const int host_;
  Status refusal_;
  bool hides_gid_types_ = false;
  bool copies_for_forks_ = true;
};

class SimFabric {
 public:
  explicit SimFabric(const FabricPolicy& policy, const Clock* clock = nullptr);
  ~SimFabric();  // destroyed after all its devices
  SimFabric(const SimFabric&) = delete;
  SimFabric& operator=(const SimFabric&) = delete;

  // Hosts count from 0. `gpus` outlive the host's devices.
  SimVerbs& add_host(const std::vector<AdapterModel>& adapters, GpusOfHost* gpus = nullptr);
  SimVerbs& verbs(int host) { return *verbs_[static_cast<std::size_t>(host)]; }
  FabricPolicy& policy() { return policy_; }  // may change at any time
  const FabricCounters& counters() const { return counters_; }
  // All connections ever made, in order.
  const std::vector<Connected>& connected() const { return connected_; }
  // A hash of all events, equal for equal runs.
  uint64_t digest() const { return digest_; }

  // Returns false if nothing is under way. Requests that wait for a path or a receive are under
  // way.
  bool step();
  // Steps until nothing is under way. Returns false after `steps_max` steps.
  bool run(int steps_max = 100'000);

  // Faults.
  void kill(int host);      // stops in the middle of everything; reported to nobody
  void cut(int a, int b);   // packets between the two are lost; reported to nobody
  void heal(int a, int b);  // undoes cut()
  // The queues of the device are flushed. No user is told.
  void take_away(int host, const std::string& device);
  // These faults are reported to the device's users.
  void lower_port(int host, const std::string& device, int port);
  void raise_port(int host, const std::string& device, int port);
  void break_device(int host, const std::string& device);
  void break_completion_queue(rdma::Device& device);
  void break_queue_pair(rdma::QueuePair& queue_pair);  // fatal, as hardware reports it

 private:
  friend class SimDevice;
  friend class SimQueuePair;
  friend class SimVerbs;

  uint64_t below(uint64_t bound) { return random_() % bound; }
  bool chance(double share) {
    return share > 0 && std::uniform_real_distribution<>(0, 1)(random_) < share;
  }
  uint64_t delay();
  Nanoseconds now() const { return clock_ != nullptr ? clock_->now() : 0; }
  void note(uint64_t value) { digest_ = (digest_ ^ value) * 0x100000001b3u; }

  // Returns the queue pair that answers `from`. Returns null if packets are lost in either
  // direction, or are not meant for the far end.
  SimQueuePair* answering(const SimQueuePair& from) const;
  bool reaches(const SimQueuePair& from, const SimQueuePair& to) const;
  Adapter& adapter(int host, const std::string& name);
  void tell(const Adapter& adapter, const rdma::AsyncEvent& event);
  void set_port(int host, const std::string& device, int port, bool is_up);

  FabricPolicy policy_;
  const Clock* clock_;
  std::mt19937_64 random_;
  FabricCounters counters_;
  std::vector<Connected> connected_;
  uint64_t digest_ = 0xcbf29ce484222325u;
  uint64_t step_ = 0;
  std::vector<std::unique_ptr<SimVerbs>> verbs_;  // by host
  std::vector<std::unique_ptr<Adapter>> adapters_;
  // Open devices in the order of opening, so that no pointer value decides anything.
  std::vector<SimDevice*> devices_;
  std::set<int> dead_;
  std::set<std::pair<int, int>> cut_;
};

}  // namespace rdmacoll::verbs_sim
