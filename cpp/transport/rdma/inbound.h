// The receiving half of one connection.
#pragma once

#include <vector>

#include "transport/rdma/link.h"

namespace rdmacoll::rdma {

class Inbound final : public FlushWaiter {
 public:
  Inbound(RankState rank_state, Link& link) : rank_state_(rank_state), link_(link) {}

  Status post_recv(const Transfer& transfer);

  // Handle records of the peer. They return false if the record makes no sense.
  bool control(int peer, const RecordHeader& header, std::span<const std::byte> payload,
               Sink& sink);
  bool data(const RecordHeader& header, std::span<const std::byte> payload);
  bool ready(const RecordHeader& header);
  bool offered(const RecordHeader& header);
  // The peer has written to a target.
  bool written(uint32_t immediate);

  void flushed(uint32_t number) override;
  void flush_failed(const std::string& cause) override;

  // Grants all transfers that may be granted by now.
  void pump();
  bool report(Sink& sink);  // reports received transfers

  bool has_work() const {
    return !granting_.empty() || !staged_.empty() || !asking_.empty() || !taking_.empty();
  }
  // Whether transfers larger than the eager size are under way.
  bool has_transfers() const { return !by_key_.empty(); }
  bool has_report() const { return !received_.empty(); }
  bool has_flushes() const { return flushes_ > 0; }     // transfers wait for flushes
  bool has_early() const { return early_.size() > 0; }  // data whose receive is not posted yet
  void clear();

 private:
  struct Key {
    Lane lane = 0;
    uint64_t sequence = 0;
  };
  // The last byte that a NIC wrote to a GPU, for the flush of all of the NIC's writes.
  struct Landed {
    uint32_t rail = 0;
    Gpu gpu = kHost;
    const std::byte* byte = nullptr;
  };
  // A transfer larger than the eager cut.
  struct Receiving {
    Progress progress;  // granted bytes; staged: copied bytes
    uint64_t written = 0;
    bool is_staged = false;  // a part lies outside the slabs
    bool is_ready = false;   // the sender has confirmed that it is ready
    uint64_t granted = 0;    // staged: granted bytes
    uint32_t targets = 0;    // staged: targets that are not written yet
    bool has_gpu = false;    // its memory of GPUs is held
    uint32_t flushes = 0;    // pending ones
    std::vector<Landed> landed;
  };
  // A granted target, by the upper half of its immediate. The lower half counts the slot's uses.
  struct Slot {
    uint16_t use = 0;
    bool is_granted = false;
    uint16_t stage = 0;  // index + 1; 0: none
    uint32_t receiving = 0;
    uint32_t bytes = 0;
    Landed landed;  // memory of a GPU
  };

  Status expect_eager(const Transfer& transfer, uint32_t bytes);
  bool ask(uint32_t index);
  void claim_offer(const Transfer& transfer, uint32_t bytes);
  bool take_offer(const Key& key);
  bool grant(uint32_t index);
  bool grant_staged(uint32_t index);
  std::size_t targets_that_fit() const;
  bool has_slot() const;
  void add_target(uint32_t index, const Piece& memory, const RailKeys& keys, uint16_t stage);
  void send_grant(const Progress& progress, uint64_t position);
  static void note_landed(Receiving& receiving, const Landed& landed);
  void flush(uint32_t index);
  void finish(uint32_t index);

  RankState rank_state_;
  Link& link_;

  std::vector<std::byte> control_;  // the part of a control message that has come

  ProgressPool eager_;
  MatchTable<uint32_t> expected_;  // eager receives -> eager_
  MatchTable<uint32_t> early_;     // data before its receive -> early_bytes_
  SlotPool<std::vector<std::byte>> early_bytes_;
  std::size_t early_cost_ = 0;   // total of the early data
  MatchTable<uint32_t> offers_;  // small transfers that wait for their receive -> bytes
  RingQueue<Key> taking_;        // receives are posted, and the sender is not told yet

  SlotPool<Receiving> receivings_;
  MatchTable<uint32_t> by_key_;   // larger than the eager cut -> receivings_
  RingQueue<uint32_t> granting_;  // in slabs, not fully granted
  RingQueue<uint32_t> asking_;    // staged, and the sender is not asked yet
  RingQueue<uint32_t> staged_;    // staged, the sender is ready, not fully granted
  SlotPool<Slot> slots_;
  std::vector<WriteTarget> targets_;  // targets of the grant that is being made
  uint32_t next_rail_ = 0;
  std::size_t flushes_ = 0;
  std::vector<uint64_t> received_;  // cookies to report
};

}  // namespace rdmacoll::rdma
