// A byte ring in shared memory: one producer, one consumer, records of whole cache lines.
//
// Each side keeps its own index and a copy of the other's, and looks at the other's line only when
// the copy does not suffice: an idle poll is one load from a line that stays in the own cache.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

#include "transport/shm/record.h"

namespace rdmacoll::shm {

// 128: processors fetch lines in pairs.
struct RingIndexes {
  alignas(128) std::atomic<uint64_t> head;         // bytes ever written; stored by the producer
  alignas(128) std::atomic<uint64_t> tail;         // bytes ever read; stored by the consumer
  alignas(128) std::atomic<uint32_t> wants_space;  // the producer sleeps on a full ring
};
static_assert(std::atomic<uint64_t>::is_always_lock_free);
static_assert(std::atomic<uint32_t>::is_always_lock_free);

class RingProducer {
 public:
  RingProducer() = default;
  RingProducer(RingIndexes* indexes, std::byte* data) : indexes_(indexes), data_(data) {}

  // Room for a record with this payload, or null: then remembers that it was refused.
  std::byte* reserve(std::size_t payload_bytes);
  // The largest payload that fits now.
  std::size_t room();
  // Writes the header before the payload that reserve() gave, and shows the record.
  void commit(const RecordHeader& header);

  bool refused() const { return refused_; }
  // Room has appeared since the refusal; forgets it.
  bool accepts_again();
  // Before sleeping on a refusal: asks the consumer to ring. False: there is room meanwhile.
  bool ask_for_space();
  // The consumer's index is nonsense.
  bool broken() const { return broken_; }

 private:
  void look_at_tail(std::memory_order order);
  void own_next(std::size_t bytes) const;
  void refuse();

  RingIndexes* indexes_ = nullptr;
  std::byte* data_ = nullptr;
  uint64_t head_ = 0;
  uint64_t tail_ = 0;  // the consumer's, as last seen
  uint64_t tail_at_refusal_ = 0;
  bool refused_ = false;
  bool broken_ = false;
};

class RingConsumer {
 public:
  RingConsumer() = default;
  RingConsumer(RingIndexes* indexes, std::byte* data) : indexes_(indexes), data_(data) {}

  bool empty() const { return indexes_->head.load(std::memory_order_acquire) == tail_; }
  // The last look before sleeping; see Doorbell for the order that it needs.
  bool empty_for_sleep() const { return indexes_->head.load(std::memory_order_seq_cst) == tail_; }

  enum class Take { nothing, record, nonsense };
  // The next of the records that were there at the last refresh(); `payload` is shared memory,
  // valid until pop().
  Take take(RecordHeader& header, const std::byte*& payload) const;
  void pop(const RecordHeader& header);
  // False: the producer's index is nonsense.
  bool refresh();
  // After a batch of pops. True: the producer wants to be woken.
  bool show_space();

 private:
  RingIndexes* indexes_ = nullptr;
  std::byte* data_ = nullptr;
  uint64_t head_ = 0;  // the producer's, as last seen
  uint64_t tail_ = 0;
};

}  // namespace rdmacoll::shm
