// A byte ring in shared memory: one producer, one consumer, records of whole cache lines.
//
// A record says itself that it is there, by the stamp in its first line: the line's number in all
// that was ever written, counted from the ring's mark, which nothing that stood there before can
// bear but by a chance of 1 to 2^64. So a small record comes with one line of the producer's cache,
// and an idle poll is one load from a line that stays in the own cache. The consumer's index is
// looked at only when the copy of it does not suffice.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

#include "transport/shm/record.h"

namespace rdmacoll::shm {

// 128: processors fetch lines in pairs.
struct RingIndexes {
  alignas(128) std::atomic<uint64_t> tail;         // bytes ever read; stored by the consumer,
  std::atomic<uint64_t> claimed;                   // as is this: see eager_budget.h
  alignas(128) std::atomic<uint32_t> wants_space;  // the producer sleeps on a full ring
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

  // Room for a record with this payload, or null: then remembers that it was refused.
  std::byte* reserve(std::size_t payload_bytes);
  // The largest payload that fits now.
  std::size_t room();
  // Writes the header before the payload that reserve() gave, and its stamp, which shows the
  // record. `past_cache`: the payload was, and that of the next record will be.
  void commit(const RecordHeader& header, bool past_cache = false);

  bool refused() const { return refused_; }
  // Room has appeared since the refusal; forgets it.
  bool accepts_again();
  // Before sleeping on a refusal: asks the consumer to ring. False: there is room meanwhile.
  bool ask_for_space();
  // What the consumer's receives have claimed so far.
  uint64_t claimed() const { return indexes_->claimed.load(std::memory_order_relaxed); }
  // The consumer's index is nonsense.
  bool broken() const { return broken_; }

 private:
  void look_at_tail(std::memory_order order);
  void own_next(std::size_t bytes) const;
  void refuse();

  RingIndexes* indexes_ = nullptr;
  std::byte* data_ = nullptr;
  uint64_t mark_ = 0;
  uint64_t head_ = 0;  // bytes ever written
  uint64_t tail_ = 0;  // the consumer's, as last seen
  uint64_t tail_at_refusal_ = 0;
  bool refused_ = false;
  bool broken_ = false;
};

class RingConsumer {
 public:
  RingConsumer() = default;
  RingConsumer(RingIndexes* indexes, std::byte* data, uint64_t mark)
      : indexes_(indexes), data_(data), mark_(mark) {}

  bool empty() const { return !is_there(std::memory_order_acquire); }
  // The last look before sleeping; see Doorbell for the order that it needs.
  bool empty_for_sleep() const { return !is_there(std::memory_order_seq_cst); }

  enum class Take { nothing, record, nonsense };
  // The next record; `payload` is shared memory, valid until pop().
  Take take(RecordHeader& header, const std::byte*& payload) const;
  void pop(const RecordHeader& header);
  uint64_t taken() const { return tail_; }  // bytes ever
  // A receive has claimed so much of what came eagerly.
  void claim(std::size_t cost) {
    claimed_ += cost;
    indexes_->claimed.store(claimed_, std::memory_order_relaxed);
  }
  // After a batch of pops. True: the producer wants to be woken. It wants that only where more is
  // to be read than a ring without the largest record, so a look in so many bytes is enough.
  bool show_space();

 private:
  bool is_there(std::memory_order order) const {
    return stamp_at(data_ + tail_ % kRingBytes).load(order) == stamp_of(mark_, tail_);
  }

  RingIndexes* indexes_ = nullptr;
  std::byte* data_ = nullptr;
  uint64_t mark_ = 0;
  uint64_t tail_ = 0;
  uint64_t shown_ = 0;  // the tail at the last look for a wish
  uint64_t claimed_ = 0;
};

}  // namespace rdmacoll::shm
