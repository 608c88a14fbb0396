// One end of a simulated connection: requester, responder and their queues.
//
// Requests are numbered from 0 on, in the order of their posts. For sends:
//   given back <= acknowledged <= delivered <= posted.
// A request holds its entry and its memory until the completion that covers it is polled.
#pragma once

#include <array>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "verbs_sim/device.h"

namespace rdmacoll::verbs_sim {

class SimQueuePair final : public rdma::QueuePair {
 public:
  SimQueuePair(SimDevice& device, const rdma::QueuePairLimits& limits, int port, int gid_index,
               int pkey_index);
  ~SimQueuePair() override;

  rdma::End local() const override { return local_; }
  rdma::QueuePairLimits granted() const override { return limits_; }
  Status connect(const rdma::End& remote, const rdma::PathSettings& path) override;
  std::size_t post_receives(std::span<const rdma::ReceiveRequest> requests,
                            Status& status) override;
  std::size_t post_sends(std::span<const rdma::SendRequest> requests, Status& status) override;
  void fail() override;

 private:
  friend class SimDevice;
  friend class SimFabric;

  enum class State : uint8_t { init, ready, error };
  // Concurrent activities: sending, acknowledging, and completing receives.
  enum Direction : uint8_t { kWire, kAcknowledgements, kArrivals, kDirections };

  struct Send {
    rdma::SendRequest request;  // its pieces are in the next members
    std::vector<rdma::Sge> pieces;
    std::vector<std::byte> inlined;
    uint64_t bytes = 0;
    std::size_t hash = 0;            // hash of the payload at the post
    bool is_lost_with_path = false;  // the acknowledgement is lost if the path dies
  };
  // A message that has begun to arrive: the missing parts and their target.
  struct Transfer {
    struct Part {
      uint64_t at = 0;
      uint64_t bytes = 0;
    };
    std::vector<Part> parts;
    uint64_t target = 0;
    uint32_t local_key = 0;  // send: of the peer's receive
    uint64_t receive = 0;    // send: the number of the peer's receive
  };
  // Nothing was done from send `at` on. This send fails with `status`, and the rest is flushed.
  struct Break {
    uint64_t at = 0;
    int status = rdma::kFlushed;
  };
  struct Due {
    uint64_t step = 0;
    Nanoseconds time = 0;
  };

  Send& send(uint64_t number) { return sends_[number - sends_given_back_]; }
  const Send& send(uint64_t number) const { return sends_[number - sends_given_back_]; }
  uint64_t sends_posted() const { return sends_given_back_ + sends_.size(); }
  uint64_t receives_posted() const { return receives_given_back_ + receives_.size(); }
  bool has_receive() const { return receives_taken_ < receives_posted(); }
  bool is_soft() const { return device_.facts_.is_software; }

  // ---- driven by the fabric (queue_pair_wire.cc) ----
  bool has_work(Direction direction) const;
  bool is_due(Direction direction) const;
  void act(Direction direction);
  void transfer();
  bool begin(SimQueuePair& peer);
  void land(SimQueuePair& peer);
  void finish(SimQueuePair& peer);
  bool may_access(const SimQueuePair& peer, uint64_t address, uint64_t bytes) const;
  void read(SimQueuePair& peer);
  void refuse(SimQueuePair& peer, int status);  // breaks the peer's end as well
  void receive_too_small(SimQueuePair& peer);
  void receiver_not_ready();
  void wait_for_path();
  void acknowledge();
  void show_arrival();
  void break_at(uint64_t at, int status);
  void complete(bool is_send, uint64_t number, rdma::Completion completion);
  void wake(Direction direction);
  std::vector<Transfer::Part> cut(uint64_t bytes);

  // ---- the queues ----
  void give_back(const QueuedCompletion& completion);
  void check_send(const rdma::SendRequest& request) const;
  bool uses(uint32_t local_key) const;
  void gather(const Send& send, uint64_t at, std::span<std::byte> into) const;
  void scatter(const Send& send, std::span<const std::byte> from) const;
  std::size_t hash_of(const Send& send) const;
  // Reads bytes of a local piece, from `at` on, as the NIC finds them.
  void read(const rdma::Sge& piece, uint64_t at, std::span<std::byte> into) const;

  SimDevice& device_;
  SimFabric& fabric_;
  const int port_;
  const int gid_index_;
  const int pkey_index_;
  rdma::QueuePairLimits limits_;
  rdma::End local_;
  rdma::End remote_;
  rdma::PathSettings path_;
  State state_ = State::init;

  std::deque<Send> sends_;  // from sends_given_back_ on
  uint64_t sends_given_back_ = 0;
  uint64_t sends_acknowledged_ = 0;
  uint64_t sends_delivered_ = 0;
  std::optional<Transfer> transfer_;  // the transfer of send(sends_delivered_)
  std::optional<Break> break_;

  std::deque<rdma::ReceiveRequest> receives_;  // from receives_given_back_ on
  uint64_t receives_given_back_ = 0;
  uint64_t receives_shown_ = 0;            // receives whose completions are in the queue
  uint64_t receives_taken_ = 0;            // receives that messages took
  std::deque<rdma::Completion> arrivals_;  // completions of receives_shown_ and the later ones

  std::array<Due, kDirections> due_{};
  int rnrs_ = 0;                // in a row
  std::optional<Due> backoff_;  // the time until which an unanswered path is retried
};

}  // namespace rdmacoll::verbs_sim
