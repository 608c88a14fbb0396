#include "transport/rdma/outbound.h"

#include <sys/uio.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/text.h"

namespace rdmacoll::rdma {
namespace {

// The most waiting control messages. The engine keeps further ones itself when it gets `busy`.
constexpr std::size_t kControlBacklogBytes = std::size_t{4} << 20;

}  // namespace

// ---- control ----

Status Outbound::post_control(std::span<const std::byte> message) {
  RC_ASSERT(message.size() <= kControlBytesMax, cat(message.size(), " bytes"));
  if (control_.size() > kControlBacklogBytes) return Status::busy();
  control_.push(message);
  control_lengths_.push(static_cast<uint32_t>(message.size()));
  ++rank_state_.counters.control_messages;
  pump_control();
  return {};
}

void Outbound::pump_control() {
  while (!control_lengths_.empty()) {
    const uint32_t length = control_lengths_.front();
    const int64_t room = link_.outbox.room();
    const uint32_t left = length - control_done_;
    // A few bytes at the end of a message are not worth a record.
    const int64_t worthwhile = std::max<int64_t>(1, link_.cuts.eager_bytes / 2);
    if (room < std::min<int64_t>(left, worthwhile)) return;
    const auto bytes = static_cast<uint32_t>(std::min<int64_t>(room, left));
    std::byte* payload = link_.outbox.append({.kind = RecordKind::control,
                                              .bytes = bytes,
                                              .sequence = length,
                                              .position = control_done_});
    if (bytes > 0) std::memcpy(payload, control_.data(), bytes);
    control_.pop(bytes);
    control_done_ += bytes;
    if (control_done_ < length) continue;
    control_lengths_.pop();
    control_done_ = 0;
  }
}

// ---- transfers ----

Status Outbound::post_send(const Transfer& transfer) {
  const std::size_t bytes = total_bytes(transfer.pieces);
  if (bytes <= link_.cuts.eager_bytes) {
    check_eager(transfer.pieces);
    // Control messages go first, so that a stream of small transfers does not starve them.
    if (!control_lengths_.empty() || link_.outbox.room() < static_cast<int64_t>(bytes)) {
      return Status::busy();
    }
    if (!link_.ahead.allows(bytes)) return offer(transfer, static_cast<uint32_t>(bytes));
    send_eager(transfer, static_cast<uint32_t>(bytes));
    return {};
  }
  if (by_key_.size() >= kTransfersMax) return Status::busy();
  const uint32_t* known = by_key_.get(transfer.lane, transfer.sequence);
  const uint32_t index = known ? *known : begin(transfer.lane, transfer.sequence);
  Sending& sending = sendings_[index];
  RC_ASSERT(!sending.is_posted, cat("sequence ", transfer.sequence, " of lane ", int{transfer.lane},
                                    " is posted twice"));
  sending.progress.begin(transfer);
  sending.is_posted = true;
  ++ungiven_;
  if (sending.granted > sending.progress.bytes) {
    link_.fault =
        cat("it granted ", sending.granted, " bytes for a transfer of ", sending.progress.bytes);
    return {};
  }
  const uint64_t of_gpus = hold_gpu_memory(rank_state_, transfer.pieces);
  sending.has_gpu = of_gpus > 0;
  rank_state_.counters.gpu_bytes_sent += of_gpus;
  if (sending.is_asked && !answer(index)) asked_.push(index);
  go_on(index);
  return {};
}

void Outbound::send_eager(const Transfer& transfer, uint32_t bytes) {
  std::byte* payload = link_.outbox.append({.kind = RecordKind::data,
                                            .lane = transfer.lane,
                                            .bytes = bytes,
                                            .sequence = transfer.sequence});
  rdmacoll::gather(transfer.pieces, payload);
  link_.ahead.spend(bytes);
  rank_state_.counters.bytes_sent += bytes;
  rank_state_.counters.bytes_copied += bytes;
  if (transfer.is_done != nullptr) {
    *transfer.is_done = true;
  } else {
    sent_.push_back(transfer.cookie);
  }
}

// The transfer waits for its receive, like those above the eager cut. No other transfer waits for
// it.
Status Outbound::offer(const Transfer& transfer, uint32_t bytes) {
  if (by_key_.size() >= kTransfersMax) return Status::busy();
  if (by_key_.contains(transfer.lane, transfer.sequence)) {
    link_.fault = cat("it granted a transfer of ", bytes, " bytes that was not offered");
    return {};
  }
  Sending& sending = sendings_[begin(transfer.lane, transfer.sequence)];
  sending.progress.begin(transfer);
  sending.is_posted = sending.is_small = true;
  ++ungiven_;
  link_.outbox.append({.kind = RecordKind::offer,
                       .lane = transfer.lane,
                       .sequence = transfer.sequence,
                       .position = bytes});
  return {};
}

uint32_t Outbound::begin(Lane lane, uint64_t sequence) {
  const uint32_t index = sendings_.take();
  Sending& sending = sendings_[index];
  sending.targets.clear();
  sending.target = 0;
  sending.target_done = 0;
  sending.granted = 0;
  sending.writes = 0;
  sending.lane = lane;
  sending.sequence = sequence;
  sending.is_posted = sending.is_asked = sending.is_writing = sending.is_small = false;
  sending.has_gpu = false;
  const bool is_new = by_key_.insert(lane, sequence, index);
  RC_ASSERT(is_new, cat("sequence ", sequence));
  return index;
}

bool Outbound::granted(const RecordHeader& header, std::span<const std::byte> payload) {
  const uint32_t* known = by_key_.get(header.lane, header.sequence);
  if (known == nullptr && by_key_.size() >= 2 * kTransfersMax) return false;
  const uint32_t index = known ? *known : begin(header.lane, header.sequence);
  Sending& sending = sendings_[index];
  if (header.position != sending.granted) return false;
  if (payload.empty()) {
    if (sending.is_asked) return false;
    sending.is_asked = true;
    if (sending.is_posted && !answer(index)) asked_.push(index);
    return true;
  }
  if (sending.is_small) return false;
  Reader reader(payload);
  while (reader.ok() && reader.left() > 0) {
    const WriteTarget target = decode_target(reader);
    if (!reader.ok() || target.bytes == 0 || target.rail >= link_.pairs.size()) return false;
    if (++unwritten_targets_ > kTargetsMax) return false;
    sending.targets.push_back(target);
    sending.granted += target.bytes;
  }
  if (sending.is_posted && sending.granted > sending.progress.bytes) return false;
  go_on(index);
  return reader.ok();
}

bool Outbound::answer(uint32_t index) {
  return sendings_[index].is_small ? send_granted(index) : say_ready(sendings_[index]);
}

bool Outbound::send_granted(uint32_t index) {
  const Progress& progress = sendings_[index].progress;
  if (link_.outbox.room() < static_cast<int64_t>(progress.bytes)) return false;
  const auto bytes = static_cast<uint32_t>(progress.bytes);
  std::byte* payload = link_.outbox.append({.kind = RecordKind::data,
                                            .lane = progress.lane,
                                            .bytes = bytes,
                                            .sequence = progress.sequence});
  progress.copy_out(std::span(payload, bytes));
  link_.ahead.spend(bytes);
  rank_state_.counters.bytes_sent += bytes;
  rank_state_.counters.bytes_copied += bytes;
  --ungiven_;
  finish(index);
  return true;
}

bool Outbound::say_ready(const Sending& sending) {
  if (link_.outbox.room() < 0) return false;
  link_.outbox.append(
      {.kind = RecordKind::ready, .lane = sending.lane, .sequence = sending.sequence});
  return true;
}

// Puts the transfer into writing_ once, while it has something to write.
void Outbound::go_on(uint32_t index) {
  Sending& sending = sendings_[index];
  const bool can_write = sending.is_posted && sending.target < sending.targets.size();
  if (!can_write || sending.is_writing) return;
  sending.is_writing = true;
  writing_.push(index);
}

void Outbound::pump_messages() {
  pump_control();
  for (; !asked_.empty() && answer(asked_.front()); asked_.pop()) {
  }
}

void Outbound::pump_writes() {
  // Each transfer writes to one target in turn. A blocked one (for example, another rail's queue is
  // full) lets others pass.
  for (std::size_t blocked = 0; blocked < writing_.size() && link_.fault.empty();) {
    const uint32_t index = writing_.front();
    writing_.pop();
    blocked = write(index) ? 0 : blocked + 1;
    Sending& sending = sendings_[index];
    if (sending.is_writing) writing_.push(index);
  }
}

// Writes to one target, as far as queue and buffers allow. Returns false if nothing was done.
bool Outbound::write(uint32_t index) {
  Sending& sending = sendings_[index];
  const WriteTarget target = sending.targets[sending.target];
  Pair& pair = link_.pairs[target.rail];
  bool moved = false;
  while (sending.target_done < target.bytes) {
    const uint32_t left = target.bytes - sending.target_done;
    // The last write takes a credit. The reserved credit is for a message that returns credits.
    if (!pair.has_room() || !pair.has_credit(target.rail == 0 ? 1 : 0)) return moved;
    std::array<Sge, kSgesMax> pieces;
    std::size_t count = 0;
    uint16_t stage = 0;
    const auto want = std::min<std::size_t>(left, pair.message_bytes_max());
    const std::size_t bytes = gather(sending, target, want, pieces, count, stage);
    if (bytes == 0) return moved;
    const bool is_last = bytes == left;
    pair.add({.kind = is_last ? SendKind::write_with_immediate : SendKind::write,
              .immediate = target.immediate,
              .remote_key = target.key,
              .remote_address = target.address + sending.target_done},
             std::span(pieces).first(count),
             {.kind = Sent::Kind::write, .stage = stage, .index = index});
    sending.progress.advance(bytes);
    sending.target_done += static_cast<uint32_t>(bytes);
    ++sending.writes;
    rank_state_.counters.bytes_sent += bytes;
    moved = true;
  }
  sending.target_done = 0;
  ++sending.target;
  --unwritten_targets_;
  if (sending.progress.done == sending.progress.bytes) --ungiven_;
  sending.is_writing = sending.target < sending.targets.size();
  return true;
}

// Names the next bytes for one write. Pieces in slabs are sent in target, others through a buffer.
std::size_t Outbound::gather(Sending& sending, const WriteTarget& target, std::size_t want,
                             std::array<Sge, kSgesMax>& pieces, std::size_t& count,
                             uint16_t& stage) {
  std::array<iovec, kSgesMax> named;
  std::size_t names = 0;
  sending.progress.gather(want, named, names);
  const std::size_t pieces_max = link_.pairs[target.rail].pieces_max();
  std::size_t bytes = 0;
  for (std::size_t i = 0; i < names; ++i) {
    auto* data = static_cast<std::byte*>(named[i].iov_base);
    std::size_t left = named[i].iov_len;
    const bool is_of_gpu = sending.has_gpu && rank_state_.slabs.is_of_gpu(data);
    if (!is_of_gpu && !rank_state_.slabs.contains({data, left})) {
      if (bytes > 0) return bytes;
      bytes = stage_some(sending, want, target.rail, pieces[0], stage);
      count = bytes > 0 ? 1 : 0;
      return bytes;
    }
    while (left > 0) {
      if (count == pieces_max) return bytes;
      Status status;
      const RailKeys* keys = rank_state_.slabs.keys(data, status);
      if (keys == nullptr) {
        link_.fault = status.message();
        return 0;
      }
      const std::size_t length = std::min(left, rank_state_.slabs.reach(data));
      pieces[count++] = {data, static_cast<uint32_t>(length), (*keys)[target.rail].local};
      bytes += length;
      data += length;
      left -= length;
    }
  }
  return bytes;
}

std::size_t Outbound::stage_some(Sending& sending, std::size_t want, uint32_t rail, Sge& piece,
                                 uint16_t& stage) {
  Stages& stages = rank_state_.send_stages;
  uint16_t index = 0;
  Status status;
  if (!stages.take(index, status)) {
    if (!status.ok()) link_.fault = status.message();
    return 0;
  }
  const std::size_t bytes = std::min<std::size_t>(want, stages.bytes());
  sending.progress.copy_out(std::span(stages.at(index), bytes));
  rank_state_.counters.bytes_copied += bytes;
  piece = {stages.at(index), static_cast<uint32_t>(bytes), stages.keys()[rail].local};
  stage = static_cast<uint16_t>(index + 1);
  return bytes;
}

void Outbound::written(const Sent& sent) {
  if (sent.stage != 0) rank_state_.send_stages.free(static_cast<uint16_t>(sent.stage - 1));
  Sending& sending = sendings_[sent.index];
  --sending.writes;
  if (sending.writes == 0 && sending.progress.done == sending.progress.bytes) finish(sent.index);
}

void Outbound::finish(uint32_t index) {
  Sending& sending = sendings_[index];
  if (std::exchange(sending.has_gpu, false)) {
    release_gpu_memory(rank_state_, sending.progress.pieces);
  }
  sent_.push_back(sending.progress.cookie);
  by_key_.erase(sending.lane, sending.sequence);
  sendings_.give_back(index);
}

bool Outbound::report(Sink& sink) {
  if (sent_.empty()) return false;
  for (const uint64_t cookie : sent_) sink.sent(cookie);
  sent_.clear();
  return true;
}

void Outbound::clear() {
  control_.clear();
  control_lengths_.clear();
  control_done_ = 0;
  for (uint32_t index = 0; index < sendings_.size(); ++index) {
    Sending& sending = sendings_[index];
    if (sending.has_gpu) release_gpu_memory(rank_state_, sending.progress.pieces);
  }
  sendings_.clear();
  by_key_.clear();
  writing_.clear();
  asked_.clear();
  sent_.clear();
  unwritten_targets_ = ungiven_ = 0;
}

}  // namespace rdmacoll::rdma
