// Simulated verbs: hosts in one process and one thread, joined by a fabric that misbehaves as a
// seed says. It stands for what a real device shows too rarely: everything that the specification
// allows happens here soon, and what it forbids to users is an assertion.
//
// Nothing moves but in step(), which each direction of a queue pair uses for one small action when
// its random delay is over: a piece of a message, an acknowledgement, a completion. So completions
// of different queue pairs and directions overtake each other, those of one direction never do.
// The same seed and the same calls give the same run.
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
  int delay_max = 4;          // steps between two actions of one direction: 1 to this
  double stall = 0.02;        // share of delays that are 30 times as long
  int pieces_max = 4;         // in which one message is read and lands, in any order
  double step_on_poll = 0.5;  // share of polls that find something newer
  double step_at_arm = 0.5;   // share of arm() calls before which something arrives, unannounced
  double full = 0;            // share of posts that take less than there is room for
  double acknowledgement_lost = 0.1;  // share of those that a path takes along when it dies
  double event_lost = 0;              // share of completion events that never come
  double event_spurious = 0;  // share of arm() calls that make the channel readable for nothing
  // Without a clock a retry takes so many steps, and up to so many for a receiver that is not
  // ready. With a clock both take the time that the settings of the path say.
  int retry_steps = 40;
  int rnr_steps = 8;
};

struct FabricCounters {
  uint64_t steps = 0;
  uint64_t sends = 0;   // messages that arrived, by kind
  uint64_t writes = 0;  // with and without immediate
  uint64_t immediates = 0;
  uint64_t bytes_sent = 0;
  uint64_t bytes_written = 0;
  uint64_t completions = 0;  // put into completion queues
  uint64_t flushed = 0;
  uint64_t errors = 0;  // completions with another status
  uint64_t rnrs = 0;    // refusals for want of a posted receive
  uint64_t fulls = 0;   // posts that took less than they were given
  uint64_t events = 0;  // completion channels made readable
  uint64_t events_lost = 0;
  uint64_t events_spurious = 0;
  uint64_t registrations = 0;
  uint64_t deregistrations = 0;
  // Messages whose memory was not at its acknowledgement what it had been at the post. The
  // specification leaves open what arrives then; a right user keeps this at 0.
  uint64_t changed_under_way = 0;
};

// How a queue pair was connected.
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

  // list() and open() fail with it: no library, no kernel module. An ok one repairs.
  void refuse_with(Status status) { refusal_ = std::move(status); }
  bool copies_for_forks() const override { return copies_for_forks_; }
  // A kernel too old to copy registered pages for a child.
  void shares_with_forks() { copies_for_forks_ = false; }
  // A library too old to say of which type a GID is.
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
  ~SimFabric();  // after all its devices
  SimFabric(const SimFabric&) = delete;
  SimFabric& operator=(const SimFabric&) = delete;

  // Hosts count from 0.
  SimVerbs& add_host(const std::vector<AdapterModel>& adapters);
  SimVerbs& verbs(int host) { return *verbs_[static_cast<std::size_t>(host)]; }
  FabricPolicy& policy() { return policy_; }  // may change at any time
  const FabricCounters& counters() const { return counters_; }
  // All that ever were, in order.
  const std::vector<Connected>& connected() const { return connected_; }
  // Of everything that has happened: equal for equal runs.
  uint64_t digest() const { return digest_; }

  // False: nothing is under way. What waits for a path or for a receive is under way.
  bool step();
  // Until nothing is under way; false when that has not come after so many steps.
  bool run(int steps_max = 100'000);

  // Faults.
  void kill(int host);      // it stops in the middle of everything; nobody is told
  void cut(int a, int b);   // packets between the two are lost; nobody is told
  void heal(int a, int b);  // undoes cut()
  void take_away(int host, const std::string& device);  // its queues are flushed; nobody is told
  // The users of the device are told.
  void lower_port(int host, const std::string& device, int port);
  void raise_port(int host, const std::string& device, int port);
  void break_device(int host, const std::string& device);
  void break_completion_queue(rdma::Device& device);
  void break_queue_pair(rdma::QueuePair& queue_pair);  // fatal, as hardware says it

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

  // Who answers what it sends: null when packets get lost in either direction or are not meant
  // for it there.
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
  // Those that are open, in the order of their opening: pointers must not decide anything.
  std::vector<SimDevice*> devices_;
  std::set<int> dead_;
  std::set<std::pair<int, int>> cut_;
};

}  // namespace rdmacoll::verbs_sim
