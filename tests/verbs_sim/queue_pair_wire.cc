// The actions of a queue pair in the fabric's steps: one small action per turn.
#include <algorithm>
#include <cerrno>

#include "base/text.h"
#include "verbs_sim/queue_pair.h"

namespace rdmacoll::verbs_sim {
namespace {

// ibv_wc_status
constexpr int kLocalLength = 1;
constexpr int kLocalOperation = 2;
constexpr int kRemoteInvalid = 9;
constexpr int kRemoteAccess = 10;
constexpr int kRemoteOperation = 11;
constexpr int kRetriesExceeded = 12;
constexpr int kRnrRetriesExceeded = 13;

constexpr uint8_t kForEver = 7;

// The specification's table: the time doubles every two values.
Nanoseconds rnr_time(uint8_t timer) {
  if (timer == 0) return 655'360 * kMicrosecond;
  if (timer == 1) return 10 * kMicrosecond;
  return Nanoseconds{timer % 2 == 0 ? 10 : 15} * (Nanoseconds{1} << (timer / 2)) * kMicrosecond;
}

}  // namespace

bool SimQueuePair::has_work(Direction direction) const {
  const bool is_broken = state_ == State::error;
  switch (direction) {
    case kWire:
      return !is_broken && sends_delivered_ < sends_posted();
    case kAcknowledgements:
      return sends_acknowledged_ < (is_broken ? sends_posted() : sends_delivered_);
    default:
      return !arrivals_.empty() || (is_broken && receives_shown_ < receives_posted());
  }
}

bool SimQueuePair::is_due(Direction direction) const {
  const Due& due = due_[direction];
  return fabric_.step_ >= due.step && fabric_.now() >= due.time;
}

void SimQueuePair::wake(Direction direction) {
  due_[direction] = {.step = fabric_.step_ + fabric_.delay()};
}

void SimQueuePair::act(Direction direction) {
  fabric_.note(uint64_t{local_.queue_pair} << 8 | direction);
  wake(direction);  // the next turn; an action that waits sets another time
  switch (direction) {
    case kWire:
      return transfer();
    case kAcknowledgements:
      return acknowledge();
    default:
      return show_arrival();
  }
}

// ---- sending ----

void SimQueuePair::transfer() {
  SimQueuePair* peer = fabric_.answering(*this);
  if (peer == nullptr) return wait_for_path();
  backoff_.reset();
  if (send(sends_delivered_).request.kind == rdma::SendKind::read) return read(*peer);
  if (!transfer_ && !begin(*peer)) return;
  if (!transfer_->parts.empty()) return land(*peer);
  finish(*peer);
}

bool SimQueuePair::begin(SimQueuePair& peer) {
  const Send& message = send(sends_delivered_);
  if (path_.mtu != peer.path_.mtu && message.bytes > std::min(path_.mtu, peer.path_.mtu)) {
    refuse(peer, kRemoteInvalid);
    return false;
  }
  Transfer transfer{.target = message.request.remote_address};
  if (message.request.kind == rdma::SendKind::send) {
    if (!peer.has_receive()) {
      receiver_not_ready();
      return false;
    }
    const rdma::ReceiveRequest& receive =
        peer.receives_[peer.receives_taken_ - peer.receives_given_back_];
    if (message.bytes > receive.piece.bytes) {
      receive_too_small(peer);
      return false;
    }
    transfer.target = reinterpret_cast<uint64_t>(receive.piece.address);
    transfer.local_key = receive.piece.local_key;
    transfer.receive = peer.receives_taken_++;
  } else if (!may_access(peer, transfer.target, message.bytes)) {
    refuse(peer, kRemoteAccess);
    return false;
  } else if (message.request.kind == rdma::SendKind::write_with_immediate && !peer.has_receive() &&
             fabric_.below(2) == 0) {  // otherwise the lack is found after the last byte
    receiver_not_ready();
    return false;
  }
  transfer.parts = cut(message.bytes);
  transfer_ = std::move(transfer);
  return true;
}

// Cuts a message into parts in random order: one byte's arrival must not imply another's.
std::vector<SimQueuePair::Transfer::Part> SimQueuePair::cut(uint64_t bytes) {
  std::vector<Transfer::Part> parts;
  uint64_t pieces = 1 + fabric_.below(static_cast<uint64_t>(fabric_.policy_.pieces_max));
  for (uint64_t at = 0; at < bytes;) {
    const uint64_t left = bytes - at;
    const uint64_t part = pieces <= 1 ? left : 1 + fabric_.below(left);
    parts.push_back({at, part});
    at += part;
    --pieces;
  }
  for (std::size_t i = parts.size(); i > 1; --i) std::swap(parts[i - 1], parts[fabric_.below(i)]);
  return parts;
}

bool SimQueuePair::may_access(const SimQueuePair& peer, uint64_t address, uint64_t bytes) const {
  if (bytes == 0) return true;  // the key is not checked then
  const uint32_t key = send(sends_delivered_).request.remote_key;
  const SimRegistration* registration = peer.device_.find_remote(key);
  return registration != nullptr && registration->holds(address, bytes);
}

void SimQueuePair::read(SimQueuePair& peer) {
  const Send& message = send(sends_delivered_);
  const uint64_t address = message.request.remote_address;
  if (fabric_.policy_.refuses_reads || !peer.limits_.allows_reads ||
      !may_access(peer, address, message.bytes)) {
    return refuse(peer, kRemoteAccess);
  }
  const SimRegistration* from = peer.device_.find_remote(message.request.remote_key);
  if (message.bytes > 0) {
    // A read pushes the earlier writes of its NIC.
    if (from->is_of_gpu()) {
      peer.device_.adapter_.gpus->flush_by(&peer.device_.adapter_, from->range()->gpu());
    }
    std::vector<std::byte> bytes(message.bytes);
    from->read(reinterpret_cast<const std::byte*>(address), bytes);
    scatter(message, bytes);
  }
  ++fabric_.counters_.reads;
  const bool was_acknowledged = !has_work(kAcknowledgements);
  ++sends_delivered_;
  if (was_acknowledged) wake(kAcknowledgements);
}

void SimQueuePair::land(SimQueuePair& peer) {
  const Transfer::Part part = transfer_->parts.back();
  const Send& message = send(sends_delivered_);
  const uint64_t address = transfer_->target + part.at;
  if (message.request.kind != rdma::SendKind::send && !may_access(peer, address, part.bytes)) {
    return refuse(peer, kRemoteAccess);  // deregistered meanwhile
  }
  transfer_->parts.pop_back();
  const bool is_send = message.request.kind == rdma::SendKind::send;
  const SimRegistration* target = is_send ? peer.device_.find_local(transfer_->local_key)
                                          : peer.device_.find_remote(message.request.remote_key);
  // The bytes are read only now, so a too early reuse of the memory shows.
  std::vector<std::byte> bytes(part.bytes);
  gather(message, part.at, bytes);
  target->write(reinterpret_cast<std::byte*>(address), bytes);
}

void SimQueuePair::finish(SimQueuePair& peer) {
  Send& message = send(sends_delivered_);
  const rdma::SendKind kind = message.request.kind;
  if (kind == rdma::SendKind::write_with_immediate && !peer.has_receive()) {
    transfer_.reset();  // the message is written once more
    return receiver_not_ready();
  }
  const bool was_idle = !peer.has_work(kArrivals);
  FabricCounters& counters = fabric_.counters_;
  if (kind == rdma::SendKind::send) {
    peer.arrivals_.push_back(
        {.kind = rdma::CompletionKind::received, .bytes = static_cast<uint32_t>(message.bytes)});
    ++counters.sends;
    counters.bytes_sent += message.bytes;
  } else {
    ++counters.writes;
    counters.bytes_written += message.bytes;
  }
  if (kind == rdma::SendKind::write_with_immediate) {
    ++peer.receives_taken_;
    peer.arrivals_.push_back({.kind = rdma::CompletionKind::received_immediate,
                              .bytes = static_cast<uint32_t>(message.bytes),
                              .immediate = message.request.immediate});
    ++counters.immediates;
  }
  if (was_idle && peer.has_work(kArrivals)) peer.wake(kArrivals);
  transfer_.reset();
  rnrs_ = 0;
  message.is_lost_with_path = fabric_.chance(fabric_.policy_.acknowledgement_lost);
  const bool was_acknowledged = !has_work(kAcknowledgements);
  ++sends_delivered_;
  if (was_acknowledged) wake(kAcknowledgements);
}

// ---- errors ----

void SimQueuePair::refuse(SimQueuePair& peer, int status) {
  break_at(sends_delivered_, status);
  peer.fail();
}

void SimQueuePair::receive_too_small(SimQueuePair& peer) {
  // Soft-RoCE and the specification have different pairs of statuses.
  ++peer.receives_taken_;
  peer.arrivals_.push_back({.status = peer.is_soft() ? kLocalOperation : kLocalLength});
  refuse(peer, peer.is_soft() ? kRemoteOperation : kRemoteInvalid);
}

void SimQueuePair::receiver_not_ready() {
  ++fabric_.counters_.rnrs;
  if (path_.rnr_retries != kForEver && rnrs_++ >= path_.rnr_retries) {
    return break_at(sends_delivered_, kRnrRetriesExceeded);
  }
  if (fabric_.clock_ != nullptr) {
    due_[kWire].time = fabric_.now() + rnr_time(path_.rnr_timer);
  } else {
    due_[kWire].step =
        fabric_.step_ + 1 + fabric_.below(static_cast<uint64_t>(fabric_.policy_.rnr_steps));
  }
}

void SimQueuePair::wait_for_path() {
  const int tries = path_.retries + 1;
  if (!backoff_) {
    backoff_ = Due{fabric_.step_ + static_cast<uint64_t>(fabric_.policy_.retry_steps * tries),
                   fabric_.now() + tries * (Nanoseconds{4096} << path_.timeout)};
  }
  if (path_.timeout == 0 || (is_soft() && path_.retries == kForEver)) return;
  const bool is_over =
      fabric_.clock_ != nullptr ? fabric_.now() >= backoff_->time : fabric_.step_ >= backoff_->step;
  // The first unacknowledged send breaks, delivered or not.
  if (is_over) break_at(sends_acknowledged_, kRetriesExceeded);
}

void SimQueuePair::break_at(uint64_t at, int status) {
  if (state_ == State::error) return;
  state_ = State::error;
  break_ = Break{at, status};
  transfer_.reset();
  wake(kAcknowledgements);
  wake(kArrivals);
}

// ---- completions ----

void SimQueuePair::acknowledge() {
  const uint64_t number = sends_acknowledged_;
  Send& message = send(number);
  rdma::Completion completion{.id = message.request.id, .kind = rdma::CompletionKind::sent};
  if (break_ && number >= break_->at) {
    completion.status = number == break_->at ? break_->status : rdma::kFlushed;
    ++sends_acknowledged_;
    return complete(true, number, completion);
  }
  if (!break_ && message.is_lost_with_path && fabric_.answering(*this) == nullptr) {
    return wait_for_path();
  }
  if (hash_of(message) != message.hash) ++fabric_.counters_.changed_under_way;
  ++sends_acknowledged_;
  if (message.request.is_signalled) complete(true, number, completion);
}

void SimQueuePair::show_arrival() {
  const uint64_t number = receives_shown_++;
  rdma::Completion completion{.kind = rdma::CompletionKind::received, .status = rdma::kFlushed};
  if (!arrivals_.empty()) {
    completion = arrivals_.front();
    arrivals_.pop_front();
  }
  completion.id = receives_[number - receives_given_back_].id;
  complete(false, number, completion);
}

void SimQueuePair::complete(bool is_send, uint64_t number, rdma::Completion completion) {
  completion.queue_pair = local_.queue_pair;
  FabricCounters& counters = fabric_.counters_;
  ++counters.completions;
  if (completion.status != 0) {
    ++(completion.status == rdma::kFlushed ? counters.flushed : counters.errors);
    // Other fields of a failed completion have no meaning.
    completion.kind = static_cast<rdma::CompletionKind>(fabric_.below(3));
    completion.immediate = static_cast<uint32_t>(fabric_.below(1 << 30));
    completion.bytes = static_cast<uint32_t>(fabric_.below(1 << 30));
    completion.vendor_error = is_soft() ? 0 : static_cast<uint32_t>(1 + fabric_.below(255));
  }
  fabric_.note(number << 16 | static_cast<uint64_t>(completion.status) << 1 | (is_send ? 1 : 0));
  device_.push({.shown = completion, .is_send = is_send, .request = number});
}

}  // namespace rdmacoll::verbs_sim
