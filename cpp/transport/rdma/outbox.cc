#include "transport/rdma/outbox.h"

#include <algorithm>
#include <utility>

#include "base/small_range.h"

namespace rdmacoll::rdma {
namespace {

// While this many messages are in flight, further records share the next message.
constexpr uint32_t kMessagesInFlight = 8;
// A completion costs time at the device, and is not urgent. One completion for this many messages
// is early enough for the count above. Control messages each have a completion, since leaving ranks
// wait for it.
constexpr uint32_t kMessagesPerCompletion = 4;
static_assert(kMessagesPerCompletion < kMessagesInFlight);
constexpr uint32_t kCreditsKept = 1;

}  // namespace

void Outbox::open(std::byte* memory, uint32_t slots, uint32_t slot_bytes, uint32_t local_key) {
  memory_ = memory;
  slot_bytes_ = message_bytes_ = slot_bytes;
  local_key_ = local_key;
  credit_slot_ = slots - 1;
  for (uint32_t i = slots - 1; i-- > 0;) free_.push_back(i);
}

int64_t Outbox::room() const {
  const int64_t fresh =
      free_.empty() ? 0 : static_cast<int64_t>(message_bytes_ - kMessageHeaderBytes);
  const int64_t left = open_bytes_ == 0 ? 0 : static_cast<int64_t>(message_bytes_ - open_bytes_);
  return std::max(fresh, left) - static_cast<int64_t>(kRecordHeaderBytes);
}

std::byte* Outbox::append(const RecordHeader& header) {
  const std::size_t bytes = kRecordHeaderBytes + header.bytes;
  if (open_bytes_ + bytes > message_bytes_) close_open();
  if (open_bytes_ == 0) {
    RC_ASSERT(!free_.empty() && kMessageHeaderBytes + bytes <= message_bytes_);
    open_slot_ = free_.back();
    free_.pop_back();
    open_bytes_ = kMessageHeaderBytes;
  }
  open_has_control_ |= header.kind == RecordKind::control || header.kind == RecordKind::path;
  std::byte* record = slot(open_slot_) + open_bytes_;
  encode(header, record);
  open_bytes_ += static_cast<uint32_t>(bytes);
  return record + kRecordHeaderBytes;
}

void Outbox::close_open() {
  if (open_bytes_ == 0) return;
  closed_.push({open_slot_, open_bytes_, std::exchange(open_has_control_, false)});
  open_bytes_ = 0;
}

void Outbox::flush(std::span<Pair> pairs) {
  Pair& pair = pairs.front();
  if (in_flight_ < kMessagesInFlight) close_open();
  while (!closed_.empty() && pair.has_room() && pair.has_credit(kCreditsKept)) {
    const Closed next = closed_.front();
    closed_.pop();
    const bool is_awaited = next.has_control || ++unawaited_ >= kMessagesPerCompletion;
    if (is_awaited) unawaited_ = 0;
    post(pairs, next.slot, next.bytes, is_awaited);
  }
}

void Outbox::return_credits(std::span<Pair> pairs) {
  Pair& pair = pairs.front();
  const bool due = claimed_ - reported_ > claims_per_message_ ||
                   is_any_of(pairs, [](const Pair& each) { return each.owes_much(); });
  // The last credit may only return credits of the same queue pair. If two ranks spent it on
  // another queue pair's credits, neither could go on.
  const uint32_t kept = pair.owes_much() ? 0 : kCreditsKept;
  if (!due || !credit_slot_is_free_ || !pair.has_room() || !pair.has_credit(kept)) return;
  credit_slot_is_free_ = false;
  post(pairs, credit_slot_, kMessageHeaderBytes, true);
}

void Outbox::post(std::span<Pair> pairs, uint32_t index, uint32_t bytes, bool is_awaited) {
  Pair& pair = pairs.front();
  MessageHeader header{.epoch = epoch_, .number = number_++, .bytes = bytes};
  for (std::size_t rail = 0; rail < pairs.size(); ++rail) {
    header.credits[rail] = pairs[rail].take_owed();
  }
  header.claimed = reported_ = claimed_;
  encode(header, slot(index));
  const Sge piece{slot(index), bytes, local_key_};
  pair.add({.kind = SendKind::send, .is_inline = bytes <= pair.inline_bytes_max()},
           std::span(&piece, 1),
           {.kind = Sent::Kind::message, .is_awaited = is_awaited, .index = index});
  ++in_flight_;
}

void Outbox::free(uint32_t index) {
  --in_flight_;
  if (index == credit_slot_) {
    credit_slot_is_free_ = true;
  } else {
    free_.push_back(index);
  }
}

void Outbox::clear() {
  free_.clear();
  closed_.clear();
  open_bytes_ = in_flight_ = unawaited_ = 0;
  claimed_ = reported_ = 0;
  open_has_control_ = false;
}

}  // namespace rdmacoll::rdma
