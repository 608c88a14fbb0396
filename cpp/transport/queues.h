// Containers that stop allocating once they have grown to the size that a run needs.
#pragma once

#include <sys/uio.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <utility>
#include <vector>

#include "base/status.h"
#include "transport/transport.h"

namespace rdmacoll {

// Posted and unfinished transfers of one peer, in each direction. A peer may announce about as many
// transfers ahead of our posts. A peer that announces more is broken and is refused.
inline constexpr std::size_t kTransfersMax = 16 * 1024;

// First in, first out.
template <typename T>
class RingQueue {
 public:
  bool empty() const { return count_ == 0; }
  std::size_t size() const { return count_; }
  // i = 0 is the oldest.
  const T& operator[](std::size_t i) const { return items_[(head_ + i) & (capacity_ - 1)]; }
  const T& front() const { return items_[head_]; }
  void push(const T& item) {
    if (count_ == capacity_) grow();
    items_[(head_ + count_++) & (capacity_ - 1)] = item;
  }
  void pop() {
    head_ = (head_ + 1) & (capacity_ - 1);
    --count_;
  }
  void erase(std::size_t i) {  // entries behind it move
    for (; i + 1 < count_; ++i) items_[(head_ + i) & (capacity_ - 1)] = (*this)[i + 1];
    --count_;
  }
  void clear() { head_ = count_ = 0; }

 private:
  void grow() {  // to a power of two, so that a mask wraps an index
    std::vector<T> larger(std::max<std::size_t>(16, items_.size() * 2));
    for (std::size_t i = 0; i < count_; ++i) larger[i] = (*this)[i];
    items_ = std::move(larger);
    capacity_ = items_.size();
    head_ = 0;
  }

  std::vector<T> items_;
  std::size_t capacity_ = 0;  // items_.size(), kept apart since items_.size() has to divide
  std::size_t head_ = 0;
  std::size_t count_ = 0;
};

// Bytes that wait for the socket. They are contiguous, so one iovec covers them all.
class ByteQueue {
 public:
  bool empty() const { return head_ == bytes_.size(); }
  std::size_t size() const { return bytes_.size() - head_; }
  std::byte* data() { return bytes_.data() + head_; }
  void push(std::span<const std::byte> more) {
    if (head_ > 0 &&
        bytes_.size() + more.size() > bytes_.capacity()) {  // make room, keep the memory
      bytes_.erase(bytes_.begin(), bytes_.begin() + static_cast<std::ptrdiff_t>(head_));
      head_ = 0;
    }
    bytes_.insert(bytes_.end(), more.begin(), more.end());
  }
  void pop(std::size_t count) {
    head_ += count;
    if (empty()) clear();
  }
  void clear() {
    bytes_.clear();
    head_ = 0;
  }

 private:
  std::vector<std::byte> bytes_;
  std::size_t head_ = 0;
};

// Maps (lane, sequence) to a value. A sorted array suffices: entries are few and come nearly in
// order, and a hash map would allocate. Usually the table is empty or the oldest entry is
// requested.
template <typename T>
class MatchTable {
 public:
  std::size_t size() const { return entries_.size() - head_; }
  bool contains(Lane lane, uint64_t sequence) const {
    const auto at = find(lane, sequence);
    return at != entries_.end() && at->is(lane, sequence);
  }
  // Null when there is none; valid until the next change.
  const T* get(Lane lane, uint64_t sequence) const {
    if (empty()) return nullptr;
    const auto at = find(lane, sequence);
    return at != entries_.end() && at->is(lane, sequence) ? &at->value : nullptr;
  }
  bool empty() const { return head_ == entries_.size(); }
  // Returns false if the key is there already.
  [[nodiscard]] bool insert(Lane lane, uint64_t sequence, const T& value) {
    if (empty() || entries_.back() < Key(lane, sequence)) {
      entries_.push_back({sequence, lane, value});
      return true;
    }
    const auto at = find(lane, sequence);
    if (at->is(lane, sequence)) return false;
    entries_.insert(at, {sequence, lane, value});
    return true;
  }
  void erase(Lane lane, uint64_t sequence) {
    if (!entries_[head_].is(lane, sequence)) {
      entries_.erase(find(lane, sequence));
    } else if (++head_ == entries_.size()) {
      clear();
    } else if (head_ * 2 > entries_.size()) {
      compact();
    }
  }
  void clear() {
    entries_.clear();
    head_ = 0;
  }

 private:
  using Key = std::pair<Lane, uint64_t>;
  struct Entry {
    uint64_t sequence;
    Lane lane;
    T value;
    bool is(Lane l, uint64_t s) const { return lane == l && sequence == s; }
    bool operator<(const Key& key) const { return Key(lane, sequence) < key; }
  };
  // The first entry that is not before the key.
  auto find(Lane lane, uint64_t sequence) const {
    const auto oldest = entries_.begin() + static_cast<std::ptrdiff_t>(head_);
    if (!empty() && oldest->is(lane, sequence)) return oldest;
    return std::lower_bound(oldest, entries_.end(), Key(lane, sequence));
  }
  void compact() {
    entries_.erase(entries_.begin(), entries_.begin() + static_cast<std::ptrdiff_t>(head_));
    head_ = 0;
  }

  std::vector<Entry> entries_;
  std::size_t head_ = 0;  // entries before this index are erased
};

// One transfer under way: the caller's pieces and the bytes done so far.
struct Progress {
  std::vector<Piece> pieces;  // keeps its memory when the slot is used again
  uint64_t bytes = 0;
  uint64_t done = 0;
  uint64_t cookie = 0;
  uint64_t sequence = 0;
  std::size_t piece = 0;   // the first piece that is not done
  std::size_t within = 0;  // the bytes of this piece that are done
  uint64_t turn = 0;       // bytes sent since its turn began
  uint64_t beside = 0;     // bytes after `bytes` that other streams carry; 0 at the end
  Lane lane = 0;

  void begin(const Transfer& transfer) {
    pieces.assign(transfer.pieces.begin(), transfer.pieces.end());
    bytes = total_bytes(transfer.pieces);
    done = turn = 0;
    cookie = transfer.cookie;
    sequence = transfer.sequence;
    lane = transfer.lane;
    piece = within = 0;
  }

  // Adds iovecs for the next `want` bytes, as far as `into` has room. Returns the bytes covered.
  std::size_t gather(std::size_t want, std::span<iovec> into, std::size_t& used) const {
    std::size_t named = 0;
    std::size_t skip = within;
    for (std::size_t i = piece; i < pieces.size() && used < into.size() && named < want; ++i) {
      const std::size_t length = std::min(pieces[i].bytes - skip, want - named);
      if (length > 0) into[used++] = iovec{pieces[i].data + skip, length};
      named += length;
      skip = 0;
    }
    return named;
  }

  void advance(std::size_t count) {
    done += count;
    turn += count;
    while (piece < pieces.size() && within + count >= pieces[piece].bytes) {
      count -= pieces[piece].bytes - within;
      within = 0;
      ++piece;
    }
    within += count;
  }

  // Copies the next bytes without advancing.
  void copy_out(std::span<std::byte> into) const {
    std::size_t copied = 0;
    std::size_t skip = within;
    for (std::size_t i = piece; copied < into.size(); ++i, skip = 0) {
      RC_ASSERT(i < pieces.size());
      const std::size_t length = std::min(pieces[i].bytes - skip, into.size() - copied);
      if (length > 0) std::memcpy(into.data() + copied, pieces[i].data + skip, length);
      copied += length;
    }
  }

  void copy_in(std::span<const std::byte> from) {
    std::size_t taken = 0;
    std::size_t skip = within;
    for (std::size_t i = piece; taken < from.size(); ++i, skip = 0) {
      RC_ASSERT(i < pieces.size());
      const std::size_t length = std::min(pieces[i].bytes - skip, from.size() - taken);
      if (length > 0) std::memcpy(pieces[i].data + skip, from.data() + taken, length);
      taken += length;
    }
    advance(from.size());
  }
};

// Objects by number, for reuse. take() does not reset an object, so it keeps its last contents.
template <typename T>
class SlotPool {
 public:
  uint32_t take() {
    if (free_.empty()) {
      free_.push_back(static_cast<uint32_t>(slots_.size()));
      slots_.emplace_back();
    }
    const uint32_t slot = free_.back();
    free_.pop_back();
    return slot;
  }
  void give_back(uint32_t slot) { free_.push_back(slot); }
  T& operator[](uint32_t slot) { return slots_[slot]; }
  const T& operator[](uint32_t slot) const { return slots_[slot]; }
  std::size_t size() const { return slots_.size(); }  // numbers ever taken
  std::size_t used() const { return slots_.size() - free_.size(); }
  void clear() {
    free_.clear();
    slots_.clear();
  }

 private:
  std::vector<T> slots_;
  std::vector<uint32_t> free_;
};

class ProgressPool : public SlotPool<Progress> {
 public:
  uint32_t take(const Transfer& transfer) {
    const uint32_t slot = SlotPool::take();
    (*this)[slot].begin(transfer);
    return slot;
  }
};

}  // namespace rdmacoll
