#include "transport/shm/ring.h"

#include <algorithm>
#include <cstring>

#include "base/processor_hints.h"
#include "base/status.h"
#include "base/text.h"
#include "memory/placement.h"

namespace rdmacoll::shm {
namespace {

constexpr std::size_t padded(std::size_t payload_bytes) {
  return round_up(sizeof(RecordHeader) + payload_bytes, kRecordAlign);
}

constexpr std::size_t place(uint64_t index) { return index % kRingBytes; }

// Both indexes only grow, by whole records, and differ by at most a ring. The peer writes the other
// index, so it is checked.
constexpr bool is_sane(uint64_t head, uint64_t tail) {
  return head - tail <= kRingBytes && head % kRecordAlign == 0 && tail % kRecordAlign == 0;
}

}  // namespace

void RingProducer::refresh_tail(std::memory_order order) {
  const uint64_t tail = indexes_->tail.load(order);
  if (!is_sane(head_, tail) || tail - tail_ > kRingBytes) {
    broken_ = true;
    return;
  }
  tail_ = tail;
}

std::byte* RingProducer::reserve(std::size_t payload_bytes) {
  const std::size_t need = padded(payload_bytes);
  RC_ASSERT(need <= kRecordBytesMax, cat("a record of ", need, " bytes"));
  if (head_ + need - tail_ > kRingBytes) {
    refresh_tail(std::memory_order_acquire);
    if (broken_ || head_ + need - tail_ > kRingBytes) {
      refuse();
      return nullptr;
    }
  }
  return data_ + place(head_) + sizeof(RecordHeader);
}

std::size_t RingProducer::room() {
  refresh_tail(std::memory_order_acquire);
  const std::size_t free = broken_ ? 0 : kRingBytes - (head_ - tail_);
  if (free < kRecordAlign) {
    refuse();
    return 0;
  }
  return std::min(free, kRecordBytesMax) - sizeof(RecordHeader);
}

void RingProducer::refuse() {
  // The oldest refusal counts, since its caller must hear of all room that appears later.
  if (!refused_) tail_at_refusal_ = tail_;
  refused_ = true;
}

void RingProducer::commit(const RecordHeader& header, bool past_cache) {
  std::byte* const record = data_ + place(head_);
  constexpr std::size_t kBehind = sizeof header.stamp;
  std::memcpy(record + kBehind, reinterpret_cast<const std::byte*>(&header) + kBehind,
              sizeof header - kBehind);
  stamp_at(record).store(stamp_of(mark_, head_), std::memory_order_release);
  head_ += padded(header.bytes);
  if (header.kind == RecordKind::data && !past_cache) own_next(padded(header.bytes));
}

// The next record often has the same length. Its lines are in the consumer's cache, and writing
// them later would wait for each line while the peer waits for us. Unread lines are excluded, and
// so is the first line, which the consumer polls.
void RingProducer::own_next(std::size_t bytes) const {
  const std::size_t free = kRingBytes - (head_ - tail_);
  for (std::size_t at = kRecordAlign; at < std::min(bytes, free); at += kRecordAlign) {
    prefetch_to_write(data_[place(head_ + at)]);
  }
}

bool RingProducer::accepts_again() {
  if (!refused_) return false;
  refresh_tail(std::memory_order_acquire);
  if (!broken_ && tail_ == tail_at_refusal_) return false;
  refused_ = false;
  return true;
}

bool RingProducer::ask_for_space() {
  // The consumer stores its tail and then reads wants_space (show_space). In the single order of
  // these four seq_cst accesses, either the consumer sees wants_space or we see its tail.
  indexes_->wants_space.store(1, std::memory_order_seq_cst);
  refresh_tail(std::memory_order_seq_cst);
  return !broken_ && tail_ == tail_at_refusal_;
}

// A reader of bytes that are written later sees the flag, since it comes before them.
void RingProducer::end() {
  if (indexes_ == nullptr) return;
  indexes_->has_ended.store(1, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_seq_cst);
}

bool RingConsumer::has_ended() const {
  if (indexes_ == nullptr) return false;
  std::atomic_thread_fence(std::memory_order_acquire);
  return indexes_->has_ended.load(std::memory_order_relaxed) != 0;
}

RingConsumer::Take RingConsumer::take(RecordHeader& header, const std::byte*& payload) const {
  if (empty()) return Take::nothing;
  const std::byte* record = data_ + place(tail_);
  std::memcpy(&header, record, sizeof header);
  if (padded(header.bytes) > kRecordBytesMax) return Take::nonsense;
  payload = record + sizeof header;
  return Take::record;
}

void RingConsumer::pop(const RecordHeader& header) {
  tail_ += padded(header.bytes);
  indexes_->tail.store(tail_, std::memory_order_release);
}

bool RingConsumer::show_space() {
  if (tail_ / kRecordBytesMax == shown_ / kRecordBytesMax) return false;
  shown_ = tail_;
  indexes_->tail.store(tail_, std::memory_order_seq_cst);
  return indexes_->wants_space.exchange(0, std::memory_order_seq_cst) != 0;
}

}  // namespace rdmacoll::shm
