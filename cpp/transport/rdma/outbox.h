// Messages on their way out of one connection: records are put into the open one, which leaves at
// once while the queue is short and takes more while it is not.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "transport/rdma/message.h"
#include "transport/rdma/pair.h"

namespace rdmacoll::rdma {

class Outbox {
 public:
  // `eager_bytes`: what the peer may be ahead of receives.
  Outbox(uint32_t epoch, std::size_t eager_bytes)
      : epoch_(epoch), claims_per_message_(eager_bytes / kTellsInABudget) {}

  // `memory`: `slots` messages of `slot_bytes` each, registered under `local_key`.
  void open(std::byte* memory, uint32_t slots, uint32_t slot_bytes, uint32_t local_key);

  // The peer's receives are smaller than our messages could be.
  void limit(uint32_t slot_bytes) { message_bytes_ = std::min(message_bytes_, slot_bytes); }

  // The largest payload that a record can have now; -1: not even an empty one.
  int64_t room() const;
  // Adds a record; its payload (header.bytes, at most room()) is to be written where this points.
  std::byte* append(const RecordHeader& header);

  bool is_empty() const { return open_bytes_ == 0 && closed_.empty(); }
  // Hands to the first pair what its queue and its credits allow. The last credit is kept for a
  // message that brings credits and nothing else, without which two ranks could wait for each other
  // for ever.
  void flush(std::span<Pair> pairs);
  // Receives have claimed so much of what came eagerly: the next message says it.
  void claim(std::size_t cost) { claimed_ += cost; }
  // A message without records, if there are many credits to return, or claims to be told, and none
  // is on its way.
  void return_credits(std::span<Pair> pairs);
  void free(uint32_t slot);

  void clear();

 private:
  // The peer hears of claims before it has spent all that it may.
  static constexpr std::size_t kTellsInABudget = 4;
  std::byte* slot(uint32_t index) { return memory_ + std::size_t{index} * slot_bytes_; }
  void close_open();
  void post(std::span<Pair> pairs, uint32_t slot, uint32_t bytes, bool is_awaited);

  uint32_t epoch_;
  std::byte* memory_ = nullptr;
  uint32_t slot_bytes_ = 0;
  uint32_t message_bytes_ = 0;  // at most slot_bytes_
  uint32_t local_key_ = 0;
  uint32_t number_ = 0;
  const std::size_t claims_per_message_;
  uint64_t claimed_ = 0;
  uint64_t told_ = 0;         // of that
  uint32_t credit_slot_ = 0;  // the last one: messages without records
  bool credit_slot_is_free_ = true;
  uint32_t in_flight_ = 0;
  uint32_t unawaited_ = 0;  // since the last one whose completion is waited for

  struct Closed {
    uint32_t slot = 0;
    uint32_t bytes = 0;
    bool has_control = false;
  };
  std::vector<uint32_t> free_;
  RingQueue<Closed> closed_;
  uint32_t open_slot_ = 0;
  uint32_t open_bytes_ = 0;  // 0: none is open
  bool open_has_control_ = false;
};

}  // namespace rdmacoll::rdma
