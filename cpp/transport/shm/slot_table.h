// Finds the slot of (traffic, lane, sequence) in a flat table with open addressing. Slots are
// recycled with the capacity of their vectors, so the steady state allocates nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

#include "base/status.h"
#include "transport/shm/record.h"

namespace rdmacoll::shm {

struct Key {
  Traffic traffic{};
  Lane lane = 0;
  uint64_t sequence = 0;

  bool operator==(const Key&) const = default;
};

template <typename Slot>
class SlotTable {
 public:
  SlotTable() : entries_(kCapacityMin) {}

  std::size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }

  // The address of a slot is stable until its erasure.
  Slot* find(const Key& key) {
    for (std::size_t at = home(key);; at = next(at)) {
      if (entries_[at].slot == nullptr) return nullptr;
      if (entries_[at].key == key) return entries_[at].slot;
    }
  }

  // `key` must be absent. The slot holds its last owner's contents.
  Slot& insert(const Key& key) {
    if (2 * (size_ + 1) > entries_.size()) grow();
    if (free_.empty()) free_.push_back(&slots_.emplace_back());
    Slot* slot = free_.back();
    free_.pop_back();
    place({key, slot});
    ++size_;
    return *slot;
  }

  void erase(const Key& key) {
    std::size_t hole = home(key);
    while (entries_[hole].slot != nullptr && !(entries_[hole].key == key)) hole = next(hole);
    RC_ASSERT(entries_[hole].slot != nullptr);
    free_.push_back(entries_[hole].slot);
    --size_;
    // Closes the gap: an entry that may stand in the hole moves there. Tombstones would slow the
    // table with age.
    for (std::size_t at = next(hole); entries_[at].slot != nullptr; at = next(at)) {
      const std::size_t preferred = home(entries_[at].key);
      const bool stays = ((at - preferred) & mask()) < ((at - hole) & mask());
      if (stays) continue;
      entries_[hole] = entries_[at];
      hole = at;
    }
    entries_[hole].slot = nullptr;
  }

  template <typename Visit>
  void for_each(Visit visit) {
    for (Entry& entry : entries_) {
      if (entry.slot != nullptr) visit(entry.key, *entry.slot);
    }
  }

  void clear() {
    for (Entry& entry : entries_) {
      if (entry.slot != nullptr) free_.push_back(entry.slot);
      entry.slot = nullptr;
    }
    size_ = 0;
  }

 private:
  struct Entry {
    Key key;
    Slot* slot = nullptr;
  };
  static constexpr std::size_t kCapacityMin = 64;

  std::size_t mask() const { return entries_.size() - 1; }
  std::size_t next(std::size_t at) const { return (at + 1) & mask(); }
  std::size_t home(const Key& key) const {
    // Sequences are counters with other counters in their high bits, so every bit must count. This
    // is the finalizer of splitmix64.
    uint64_t bits = key.sequence ^ (uint64_t{key.lane} << 56) ^
                    (uint64_t{static_cast<uint8_t>(key.traffic)} << 48);
    bits = (bits ^ (bits >> 30)) * 0xbf58476d1ce4e5b9u;
    bits = (bits ^ (bits >> 27)) * 0x94d049bb133111ebu;
    return (bits ^ (bits >> 31)) & mask();
  }

  void place(const Entry& entry) {
    std::size_t at = home(entry.key);
    while (entries_[at].slot != nullptr) {
      RC_ASSERT(!(entries_[at].key == entry.key));
      at = next(at);
    }
    entries_[at] = entry;
  }

  void grow() {
    std::vector<Entry> old(2 * entries_.size());
    old.swap(entries_);
    free_.reserve(entries_.size());
    for (const Entry& entry : old) {
      if (entry.slot != nullptr) place(entry);
    }
  }

  std::vector<Entry> entries_;
  std::deque<Slot> slots_;  // a deque keeps addresses when it grows
  std::vector<Slot*> free_;
  std::size_t size_ = 0;
};

}  // namespace rdmacoll::shm
