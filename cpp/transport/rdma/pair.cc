#include "transport/rdma/pair.h"

#include <algorithm>
#include <utility>

#include "base/text.h"

namespace rdmacoll::rdma {
namespace {

constexpr uint32_t kInlineBytes = 256;
// An unsignalled request holds its entry until a later signalled one completes.
constexpr uint32_t kUnsignalledMax = 16;

}  // namespace

Status Pair::open(Device& device, const Rail& rail, const Sizes& sizes, std::byte* memory,
                  uint32_t local_key) {
  sizes_ = sizes;
  memory_ = memory;
  local_key_ = local_key;
  const QueuePairLimits wanted{
      .sends = sizes.sends,
      .receives = sizes.receives,
      .send_pieces = std::min<uint32_t>(kSgesMax, std::max(1, device.facts().scatter_max)),
      .inline_bytes = kInlineBytes};
  RC_RETURN_IF_ERROR(
      device.create_queue_pair(wanted, rail.port, rail.gid_index, rail.pkey_index, queue_pair_));
  const QueuePairLimits granted = queue_pair_->granted();
  inline_bytes_max_ = granted.inline_bytes;
  pieces_max_ = std::min<std::size_t>(kSgesMax, std::max<uint32_t>(1, granted.send_pieces));
  sizes_.sends = std::min(sizes.sends, granted.sends);
  for (const PortFacts& port : device.facts().ports) {
    if (port.number == rail.port && port.message_bytes_max > 0) {
      message_bytes_max_ = port.message_bytes_max;
    }
  }
  RC_ASSERT(sizes_.sends > kUnsignalledMax && granted.receives >= sizes.receives,
            cat(granted.sends, " sends, ", granted.receives, " receives"));
  chain_.reserve(sizes_.sends);
  pieces_.resize(sizes_.sends);
  consumed_.reserve(sizes_.receives);
  receives_.reserve(sizes_.receives);
  for (uint32_t i = 0; i < sizes_.receives; ++i) consume(i);
  return {};
}

Status Pair::connect(const End& remote, const PathSettings& path, uint32_t credits) {
  credits_ = credits_max_ = credits;
  owed_ = -static_cast<int32_t>(sizes_.receives);
  RC_RETURN_IF_ERROR(flush_receives());
  return queue_pair_->connect(remote, path);
}

void Pair::add(SendRequest request, std::span<const Sge> pieces, Sent sent) {
  RC_ASSERT(has_room() && pieces.size() <= pieces_max_);
  if (request.kind != SendKind::write) {
    RC_ASSERT(credits_ > 0);
    --credits_;
  }
  Pieces& kept = pieces_[chain_.size()];
  std::copy(pieces.begin(), pieces.end(), kept.begin());
  request.id = next_id_++;
  request.pieces = std::span(kept).first(pieces.size());
  is_awaited_ |= sent.is_awaited;
  request.is_signalled = ++unsignalled_ >= kUnsignalledMax;
  if (request.is_signalled) note_signalled();
  chain_.push_back(request);
  in_flight_.push(sent);
}

void Pair::request_tail_completion() {
  const bool rests = std::exchange(tail_at_last_request_, next_id_) == next_id_;
  if (rests && unsignalled_ > 0 && has_room()) {
    add({.kind = SendKind::write}, {}, {.kind = Sent::Kind::tail});
  }
}

Status Pair::flush() {
  if (has_many_consumed()) RC_RETURN_IF_ERROR(flush_receives());
  if (chain_.empty()) return {};
  SendRequest& last = chain_.back();
  if (is_awaited_) last.is_signalled = true;
  if (last.is_signalled) note_signalled();
  Status status;
  const std::size_t taken = queue_pair_->post_sends(chain_, status);
  if (taken == chain_.size()) {
    chain_.clear();
  } else {
    forget(taken);
  }
  return status;
}

// Drops the requests that the device took. The queue is full or has failed, so the others remain.
void Pair::forget(std::size_t taken) {
  chain_.erase(chain_.begin(), chain_.begin() + static_cast<std::ptrdiff_t>(taken));
  for (std::size_t i = 0; taken > 0 && i < chain_.size(); ++i) {
    pieces_[i] = pieces_[i + taken];
    chain_[i].pieces = std::span(pieces_[i]).first(chain_[i].pieces.size());
  }
}

Status Pair::flush_receives() {
  receives_.clear();
  for (const uint64_t id : consumed_) {
    receives_.push_back(
        {id, {memory_ + id * sizes_.receive_bytes, sizes_.receive_bytes, local_key_}});
  }
  Status status;
  const std::size_t taken = queue_pair_->post_receives(receives_, status);
  consumed_.erase(consumed_.begin(), consumed_.begin() + static_cast<std::ptrdiff_t>(taken));
  owed_ += static_cast<int32_t>(taken);
  return status;
}

std::span<const std::byte> Pair::received(uint64_t id, uint32_t bytes) const {
  RC_ASSERT(id < sizes_.receives && bytes <= sizes_.receive_bytes, cat(id, ", ", bytes));
  return {memory_ + id * sizes_.receive_bytes, bytes};
}

uint16_t Pair::take_owed() {
  const auto taken = static_cast<uint16_t>(std::clamp<int32_t>(owed_, 0, UINT16_MAX));
  owed_ -= taken;
  return taken;
}

void Pair::destroy() {
  if (queue_pair_ == nullptr) return;
  queue_pair_->fail();
  queue_pair_.reset();
  chain_.clear();
  consumed_.clear();
}

}  // namespace rdmacoll::rdma
