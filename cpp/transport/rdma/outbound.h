// The sending half of one connection.
#pragma once

#include <vector>

#include "transport/rdma/link.h"

namespace rdmacoll::rdma {

class Outbound {
 public:
  Outbound(RankState rank_state, Link& link) : rank_state_(rank_state), link_(link) {}

  Status post_control(std::span<const std::byte> message);
  Status post_send(const Transfer& transfer);

  // Handles a grant. Returns false if the grant makes no sense.
  bool granted(const RecordHeader& header, std::span<const std::byte> payload);
  // Call when a write is done.
  void written(const Sent& sent);

  // Move the data that may go by now into messages and into queues.
  void pump_messages();
  void pump_writes();
  bool report(Sink& sink);  // reports sent transfers

  bool has_work() const {
    return !control_lengths_.empty() || !writing_.empty() || !asked_.empty();
  }
  bool awaits_grants() const { return ungiven_ > 0; }
  bool has_transfers() const { return !by_key_.empty(); }  // larger than the eager cut
  bool has_report() const { return !sent_.empty(); }
  void clear();

 private:
  // A transfer larger than the eager cut. It begins with its post or with the first record of its
  // grant. A small transfer that had no budget when it was posted is one, too.
  struct Sending {
    Progress progress;
    std::vector<WriteTarget> targets;
    std::size_t target = 0;    // the next one to write to
    uint32_t target_done = 0;  // bytes of this target that are written
    uint64_t granted = 0;      // total bytes of the targets
    uint32_t writes = 0;       // in flight
    Lane lane = 0;
    uint64_t sequence = 0;
    bool is_posted = false;
    bool is_asked = false;  // the receiver waits for `ready`, or for the bytes
    bool is_small = false;
    bool has_gpu = false;     // its memory of GPUs is held
    bool is_writing = false;  // in writing_
  };

  void send_eager(const Transfer& transfer, uint32_t bytes);
  uint32_t begin(Lane lane, uint64_t sequence);
  void go_on(uint32_t index);
  void pump_control();
  Status offer(const Transfer& transfer, uint32_t bytes);
  bool answer(uint32_t index);
  bool say_ready(const Sending& sending);
  bool send_granted(uint32_t index);
  bool write(uint32_t index);
  std::size_t gather(Sending& sending, const WriteTarget& target, std::size_t want,
                     std::array<Sge, kSgesMax>& pieces, std::size_t& count, uint16_t& stage);
  std::size_t stage_some(Sending& sending, std::size_t want, uint32_t rail, Sge& piece,
                         uint16_t& stage);
  void finish(uint32_t index);

  RankState rank_state_;
  Link& link_;

  ByteQueue control_;  // control messages that did not fit yet
  RingQueue<uint32_t> control_lengths_;
  uint32_t control_done_ = 0;  // bytes of the first one that have left

  SlotPool<Sending> sendings_;
  MatchTable<uint32_t> by_key_;  // unfinished transfers -> sendings_
  RingQueue<uint32_t> writing_;  // posted and granted
  RingQueue<uint32_t> asked_;    // posted, and the receiver waits for a message
  std::vector<uint64_t> sent_;   // cookies to report
  std::size_t unwritten_targets_ = 0;
  std::size_t ungiven_ = 0;  // posted transfers whose bytes the device has not fully got
};

}  // namespace rdmacoll::rdma
