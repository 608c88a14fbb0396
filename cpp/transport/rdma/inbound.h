// The receiving half of one connection.
#pragma once

#include <vector>

#include "transport/rdma/link.h"

namespace rdmacoll::rdma {

class Inbound {
 public:
  Inbound(Home home, Link& link) : home_(home), link_(link) {}

  Status post_recv(const Transfer& transfer);

  // Records that came. False: nonsense.
  bool control(int peer, const RecordHeader& header, std::span<const std::byte> payload,
               Sink& sink);
  bool data(const RecordHeader& header, std::span<const std::byte> payload);
  bool ready(const RecordHeader& header);
  bool offered(const RecordHeader& header);
  // A place was written.
  bool written(uint32_t immediate);

  // Grants what may be granted by now.
  void pump();
  bool report(Sink& sink);  // what has been received

  bool has_work() const {
    return !granting_.empty() || !staged_.empty() || !asking_.empty() || !taking_.empty();
  }
  bool has_transfers() const { return !by_key_.empty(); }  // beyond the eager cut
  bool has_report() const { return !received_.empty(); }
  bool has_early() const { return early_.size() > 0; }  // data whose receive is not posted yet
  void clear();

 private:
  struct Key {
    Lane lane = 0;
    uint64_t sequence = 0;
  };
  // A transfer beyond the eager cut.
  struct Receiving {
    Progress progress;  // how far it is granted; staged: how far it is copied
    uint64_t written = 0;
    bool is_staged = false;  // some of it lies outside the slabs,
    bool is_ready = false;   // and the sender has said that it is there
    uint64_t granted = 0;    // staged: bytes,
    uint32_t places = 0;     // and places that are not written yet
  };
  // A granted place, by the upper half of its immediate; the lower half counts its uses.
  struct Slot {
    uint16_t use = 0;
    bool is_granted = false;
    uint16_t stage = 0;  // + 1
    uint32_t receiving = 0;
    uint32_t bytes = 0;
  };

  Status expect_eager(const Transfer& transfer, uint32_t bytes);
  bool ask(uint32_t index);
  void claim_offer(const Transfer& transfer, uint32_t bytes);
  bool take_offer(const Key& key);
  bool grant(uint32_t index);
  bool grant_staged(uint32_t index);
  std::size_t places_that_fit() const;
  bool has_slot() const;
  void add_place(uint32_t index, const std::byte* address, uint32_t bytes, const RailKeys& keys,
                 uint16_t stage);
  void send_grant(const Progress& progress, uint64_t position);
  void finish(uint32_t index);

  Home home_;
  Link& link_;

  std::vector<std::byte> control_;  // of a message in several records, what has come

  ProgressPool eager_;
  MatchTable<uint32_t> expected_;  // eager receives -> eager_
  MatchTable<uint32_t> early_;     // data before its receive -> early_bytes_
  SlotPool<std::vector<std::byte>> early_bytes_;
  std::size_t early_cost_ = 0;   // of all of these
  MatchTable<uint32_t> offers_;  // small transfers that wait for their receive -> bytes
  RingQueue<Key> taking_;        // their receives are posted, and the sender does not know

  SlotPool<Receiving> receivings_;
  MatchTable<uint32_t> by_key_;   // beyond the eager cut -> receivings_
  RingQueue<uint32_t> granting_;  // in slabs, and not granted to its end
  RingQueue<uint32_t> asking_;    // staged, and the sender does not know
  RingQueue<uint32_t> staged_;    // staged, the sender has it, and not granted to its end
  SlotPool<Slot> slots_;
  std::vector<Place> places_;  // of the grant that is being made
  uint32_t next_rail_ = 0;
  std::vector<uint64_t> received_;  // cookies to report
};

}  // namespace rdmacoll::rdma
