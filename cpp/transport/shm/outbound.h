// The sending half of a peer: control messages, publications, sends, and answers to the peer.
//
// A send is a publication in the transfer space. Once the receive is posted, the receiver copies
// the bytes out of our memory and releases it. The sender never writes into the receiver's memory.
// The posted receive serves as the grant, so a grant costs no message.
//
// If the receiver can read only our pool, other bytes are staged in the pool first. Staging memory
// is bounded. A transfer without a receive would keep that memory from another that the peer waits
// for. So large transfers are staged only when the peer has granted them. A granted transfer always
// finds room in the reserve.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"
#include "memory/pool.h"
#include "memory/store_policy.h"
#include "transport/eager_budget.h"
#include "transport/shm/doorbell.h"
#include "transport/shm/record.h"
#include "transport/shm/ring.h"
#include "transport/shm/slot_table.h"
#include "transport/transport.h"

namespace rdmacoll::shm {

class Outbound {
 public:
  // `eager_bytes`: limit of data that is sent before its receives are posted.
  Outbound(MemoryPool& pool, uint32_t epoch, std::size_t eager_bytes, Transport::Counters& counters)
      : pool_(pool), epoch_(epoch), counters_(counters), ahead_(eager_bytes) {}
  ~Outbound() { close(); }
  Outbound(const Outbound&) = delete;
  Outbound& operator=(const Outbound&) = delete;

  Status open(RingProducer ring, Bell bell, bool one_copy);
  // Tells the peer, and frees the staging memory. No later call sends anything.
  void close();

  // Return Status::busy() when there is no room.
  Status post_control(std::span<const std::byte> message);
  Status publish(const Transfer& transfer);
  Status send(const Transfer& transfer);
  Status release(const Key& key);
  Status grant(const Key& key);
  void release_when_possible(const Key& key);
  void grant_when_possible(const Key& key);
  // A record about memory of GPUs. It is written as soon as the ring has room, and before all later
  // control messages.
  void note(RecordKind kind, uint32_t count, uint64_t extra, std::span<const std::byte> payload);
  void heartbeat();  // does nothing if the ring is full, since unread records prove liveness

  // Handle an answer of the peer.
  Status released(const Key& key, Sink& sink);
  Status granted(const Key& key);

  bool has_work() const {
    return must_recheck_sleep_ || ring_.refused() || !staged_.empty() || !releases_.empty() ||
           !grants_.empty() || !granted_.empty() || !control_.empty() || !notes_.empty();
  }
  bool awaits_grants() const { return waiting_ > 0; }
  // Writes delayed records and reports completions. Returns true if anything moved.
  bool flush(Sink& sink);
  bool arm();
  bool broken() const { return ring_.broken() || has_impossible_claims_; }
  // Checks again, behind a fence, whether the peer sleeps: see doorbell.h.
  void recheck_sleep() {
    if (must_recheck_sleep_) ring_behind_fence();
  }
  // Returns true if the peer has nothing left to read and we have nothing left to write.
  bool finished() const;
  void ring_bell();
  int core_of_peer() const { return bell_.core(); }

 private:
  void ring_behind_fence();
  enum class Stage : uint8_t { published, waiting, granted, granted_early };
  struct Send {
    Stage stage{};
    bool reported = false;
    bool eager = false;
    uint64_t cookie = 0;
    std::size_t bytes = 0;
    std::byte* staging = nullptr;
    std::vector<Piece> pieces;      // in states waiting, granted
    std::vector<PieceRecord> list;  // in state published, when the list is too long for a record
  };
  enum class Staged { done, ring_full, no_memory };
  struct Note {
    RecordKind kind{};
    uint32_t count = 0;
    uint64_t extra = 0;
    std::vector<std::byte> payload;
  };

  struct Encoded {
    std::size_t bytes = 0;
    bool in_pool = true;  // or on a GPU: the peer needs no other memory
  };
  Encoded encode(std::span<const Piece> pieces);  // result in wire_
  // Reads the peer's count of claims only when the last known count does not suffice.
  bool may_send_early(std::size_t bytes) {
    if (ahead_.allows(bytes)) return true;
    has_impossible_claims_ |= !ahead_.hear(ring_.claimed());
    return ahead_.allows(bytes);
  }
  Status send_data(const Key& key, const Transfer& transfer, std::size_t bytes);
  Status write_publication(const Key& key, const Transfer& transfer, std::size_t bytes);
  Staged stage(const Key& key, Send& send, std::span<const Piece> pieces, bool may_use_reserve);
  void unstage(Send& send);
  bool write_answer(RecordKind kind, const Key& key);
  bool write_answers(RecordKind kind, std::vector<Key>& keys);
  void write_control(std::byte* place, std::span<const std::byte> bytes, uint32_t total,
                     uint64_t offset);
  bool flush_control();
  bool flush_notes();
  void commit(const RecordHeader& header, bool past_cache = false);
  RecordHeader header(RecordKind kind, const Key& key, std::size_t bytes) const;

  MemoryPool& pool_;
  const uint32_t epoch_;
  Transport::Counters& counters_;
  RingProducer ring_;
  StorePolicy store_policy_;  // for data in the ring, and for staged bytes
  Bell bell_;
  bool one_copy_ = false;
  bool must_recheck_sleep_ = false;
  EagerBudget ahead_;                   // for transfers in records
  bool has_impossible_claims_ = false;  // the peer's count of claims was impossible

  SlotTable<Send> sends_;
  std::size_t grants_early_ = 0;
  std::size_t outstanding_ = 0;  // sends in sends_ that are accepted and not yet reported
  std::size_t waiting_ = 0;      // the part of them that waits for a grant
  std::size_t eager_bytes_ = 0;
  std::byte* reserve_ = nullptr;  // kStagedBytesMax bytes
  bool reserve_in_use_ = false;
  std::vector<PieceRecord> wire_;   // scratch
  std::vector<uint64_t> staged_;    // cookies of sends whose bytes are copied, to be reported
  std::vector<Key> granted_;        // sends that may be staged now
  std::vector<Key> releases_;       // releases to be written
  std::vector<Key> grants_;         // grants of small offered transfers, to be written
  std::vector<Note> notes_;         // to be written
  std::vector<std::byte> control_;  // the unsent rest of a large message
  std::size_t control_done_ = 0;
  uint64_t control_number_ = 0;
};

}  // namespace rdmacoll::shm
