// A byte ring in shared memory: one producer, one consumer, records of whole cache lines.
//
// The stamp in a record's first line marks the record as present. The stamp is the line's number
// among all lines ever written, counted from the ring's random mark. Older bytes at that place
// equal the stamp only with probability 1 in 2^64. So a small record costs one line of the
// producer's cache. An idle poll is one load from a line in the own cache. The producer reads the
// consumer's index only when its copy does not suffice.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

#include "transport/shm/record.h"

namespace rdmacoll::shm {

// 128 bytes, since processors fetch lines in pairs.
struct RingIndexes {
  alignas(128) std::atomic<uint64_t> tail;         // bytes ever read; the consumer stores it
  std::atomic<uint64_t> claimed;                   // the consumer stores it: see eager_budget.h
  alignas(128) std::atomic<uint32_t> wants_space;  // the producer sleeps on a full ring
  std::atomic<uint32_t> has_ended;                 // the producer will give its memory back
};
static_assert(std::atomic<uint64_t>::is_always_lock_free);
static_assert(std::atomic<uint32_t>::is_always_lock_free);

using Stamp = std::atomic<uint64_t>;
inline Stamp& stamp_at(std::byte* record) { return *reinterpret_cast<Stamp*>(record); }
inline uint64_t stamp_of(uint64_t mark, uint64_t index) { return mark + index / kRecordAlign; }

class RingProducer {
 public:
  RingProducer() = default;
  RingProducer(RingIndexes* indexes, std::byte* data, uint64_t mark)
      : indexes_(indexes), data_(data), mark_(mark) {}

  // Returns room for a record with this payload. If there is none, remembers the refusal and
  // returns null.
  std::byte* reserve(std::size_t payload_bytes);
  // The largest payload that fits now.
  std::size_t room();
  // Writes the header before the payload that reserve() gave, then the stamp, which shows the
  // record. If `past_cache` is true, the payload bypassed the cache, and the next payload will.
  void commit(const RecordHeader& header, bool past_cache = false);

  bool refused() const { return refused_; }
  // Returns true once if room has appeared since the refusal, and forgets the refusal.
  bool accepts_again();
  // Call before sleeping on a refusal. Asks the consumer to ring. Returns false if there is room
  // now.
  bool ask_for_space();
  // Eager bytes that the consumer's receives have claimed so far.
  uint64_t claimed() const { return indexes_->claimed.load(std::memory_order_relaxed); }
  // Call before memory that the consumer may read is given back.
  void end();
  // Returns true if the consumer's index is impossible.
  bool broken() const { return broken_; }

 private:
  void refresh_tail(std::memory_order order);
  void own_next(std::size_t bytes) const;
  void refuse();

  RingIndexes* indexes_ = nullptr;
  std::byte* data_ = nullptr;
  uint64_t mark_ = 0;
  uint64_t head_ = 0;  // bytes ever written
  uint64_t tail_ = 0;  // the consumer's index, as last seen
  uint64_t tail_at_refusal_ = 0;
  bool refused_ = false;
  bool broken_ = false;
};

class RingConsumer {
 public:
  RingConsumer() = default;
  RingConsumer(RingIndexes* indexes, std::byte* data, uint64_t mark)
      : indexes_(indexes), data_(data), mark_(mark) {}

  bool empty() const { return !has_record(std::memory_order_acquire); }
  // The last check before sleeping. See Doorbell for the memory order that it needs.
  bool empty_for_sleep() const { return !has_record(std::memory_order_seq_cst); }

  enum class Take { nothing, record, nonsense };
  // Reads the next record. `payload` is shared memory, valid until pop().
  Take take(RecordHeader& header, const std::byte*& payload) const;
  void pop(const RecordHeader& header);
  uint64_t taken() const { return tail_; }  // bytes ever taken
  // Whether memory of the producer that this rank has just read may have been given back before. A
  // killed producer does not say so, and gives nothing back.
  bool has_ended() const;
  // Adds to the eager bytes that receives have claimed.
  void claim(std::size_t cost) {
    claimed_ += cost;
    indexes_->claimed.store(claimed_, std::memory_order_relaxed);
  }
  // Call after a batch of pops. Returns true if the producer wants to be woken. A producer waits
  // only if the unread bytes leave no room for the largest record. So one check per kRecordBytesMax
  // bytes is enough.
  bool show_space();

 private:
  bool has_record(std::memory_order order) const {
    return stamp_at(data_ + tail_ % kRingBytes).load(order) == stamp_of(mark_, tail_);
  }

  RingIndexes* indexes_ = nullptr;
  std::byte* data_ = nullptr;
  uint64_t mark_ = 0;
  uint64_t tail_ = 0;
  uint64_t shown_ = 0;  // the tail at the last check of wants_space
  uint64_t claimed_ = 0;
};

}  // namespace rdmacoll::shm
