// Outgoing messages of one connection. Records are put into the open message. It leaves at once
// while the queue is short, and takes further records while the queue is long.
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
  // `eager_bytes`: the eager budget of the peer.
  Outbox(uint32_t epoch, std::size_t eager_bytes)
      : epoch_(epoch), claims_per_message_(eager_bytes / kReportsInABudget) {}

  // `memory`: `slots` messages of `slot_bytes` each, registered under `local_key`.
  void open(std::byte* memory, uint32_t slots, uint32_t slot_bytes, uint32_t local_key);

  // Limits the message size, since the peer's receives are smaller than our slots.
  void limit(uint32_t slot_bytes) { message_bytes_ = std::min(message_bytes_, slot_bytes); }

  // The largest payload that a record can have now. -1: not even an empty record fits.
  int64_t room() const;
  // Adds a record. The caller writes its payload (header.bytes, at most room()) at the result.
  std::byte* append(const RecordHeader& header);

  bool is_empty() const { return open_bytes_ == 0 && closed_.empty(); }
  // Posts messages to the first pair, as far as its queue and credits allow. The last credit is
  // kept for a message that only returns credits. Otherwise two ranks could wait for each other for
  // ever.
  void flush(std::span<Pair> pairs);
  // Adds to the eager bytes that receives have claimed. The next message reports the total.
  void claim(std::size_t cost) { claimed_ += cost; }
  // Sends a message without records if many credits or claims are to be reported. Does nothing
  // while one is on its way.
  void return_credits(std::span<Pair> pairs);
  void free(uint32_t slot);

  void clear();

 private:
  // Claims are reported this many times per budget, so the peer hears of them in time.
  static constexpr std::size_t kReportsInABudget = 4;
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
  uint64_t reported_ = 0;     // the part of claimed_ that is reported
  uint32_t credit_slot_ = 0;  // the last slot, for messages without records
  bool credit_slot_is_free_ = true;
  uint32_t in_flight_ = 0;
  uint32_t unawaited_ = 0;  // messages since the last one whose completion is awaited

  struct Closed {
    uint32_t slot = 0;
    uint32_t bytes = 0;
    bool has_control = false;
  };
  std::vector<uint32_t> free_;
  RingQueue<Closed> closed_;
  uint32_t open_slot_ = 0;
  uint32_t open_bytes_ = 0;  // 0: no message is open
  bool open_has_control_ = false;
};

}  // namespace rdmacoll::rdma
