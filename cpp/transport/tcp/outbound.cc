#include "transport/tcp/outbound.h"

#include <sys/socket.h>

#include <cerrno>

#include "base/text.h"

namespace rdmacoll::tcp {
namespace {

// If more bytes than this wait for the socket, the peer does not read, and post_control returns
// busy.
constexpr std::size_t kUrgentBytesMax = 4 * kControlBytesMax;

constexpr std::size_t kFramesPerCall = 16;
constexpr std::size_t kIovecsPerSend = 128;
// The number of sends that further streams search for a stripe.
constexpr std::size_t kSendsSearched = 16;
// An eager frame is the whole transfer, so it needs room for all pieces in one call.
constexpr std::size_t kEagerPieces = kIovecsPerSend / 2;

std::string misfit(Lane lane, uint64_t sequence, uint64_t granted, uint64_t sends) {
  return cat("granted ", granted, " B for a transfer of ", sends, " B (lane ", int{lane},
             ", sequence ", sequence, ")");
}

}  // namespace

struct Outbound::Plan {
  std::array<Frame, kFramesPerCall> frames;
  std::size_t frame_count = 0;
  std::array<iovec, kIovecsPerSend> iovecs;
  std::size_t iovec_count = 0;
  std::size_t urgent = 0;  // bytes of urgent_ in this call
  std::size_t bytes = 0;

  void add(void* data, std::size_t count) {
    iovecs[iovec_count++] = iovec{data, count};
    bytes += count;
  }
};

void Outbound::put_urgent(const Header& header, std::span<const std::byte> payload) {
  urgent_.push(encode(header));
  urgent_.push(payload);
}

Status Outbound::post_control(std::span<const std::byte> message) {
  RC_ASSERT(message.size() <= kControlBytesMax, cat(message.size(), " B"));
  if (urgent_.size() > kUrgentBytesMax) return Status::busy();
  put_urgent(
      {.kind = Kind::control, .epoch = epoch_, .bytes = static_cast<uint32_t>(message.size())},
      message);
  ++counters_.control_messages;
  return {};
}

// If the data has come, its sender needs the grant for its eager budget alone. So such grants wait
// until they hold half of the budget.
void Outbound::grant(Lane lane, uint64_t sequence, uint64_t bytes, bool came_first) {
  const Header header{
      .kind = Kind::grant, .lane = lane, .epoch = epoch_, .sequence = sequence, .position = bytes};
  if (!came_first) return put_urgent(header, {});
  late_.push(encode(header));
  late_bytes_ += bytes + kEagerCost;
  if (late_bytes_ > eager_bytes_max_ / 2) put_late();
}

void Outbound::put_late() {
  urgent_.push(std::span(late_.data(), late_.size()));
  late_.clear();
  late_bytes_ = 0;
}

void Outbound::heartbeat() {
  put_late();
  // Queued frames are heartbeats too, as soon as the peer reads again.
  if (!has_output()) put_urgent({.kind = Kind::heartbeat, .epoch = epoch_}, {});
}

Status Outbound::post_send(const Transfer& transfer) {
  if (sends_.used() >= kTransfersMax) return Status::busy();
  const uint32_t slot = sends_.take(transfer);
  const uint64_t bytes = sends_[slot].bytes;
  RC_ASSERT(bytes <= kTransferBytesMax, cat(bytes, " B"));
  if (const uint64_t* granted = grants_.get(transfer.lane, transfer.sequence)) {
    if (*granted != bytes && fault_.empty()) {
      fault_ = misfit(transfer.lane, transfer.sequence, *granted, bytes);
    }
    grants_.erase(transfer.lane, transfer.sequence);
    ready_.push(slot);
    return {};
  }
  const bool ahead = goes_ahead(sends_[slot], transfer.is_announced);
  bool is_new = !waiting_.contains(transfer.lane, transfer.sequence);
  if (ahead) {
    is_new = is_new && eager_.insert(transfer.lane, transfer.sequence, bytes);
    eager_bytes_ += bytes + kEagerCost;
    ready_.push(slot);
  } else {
    is_new = waiting_.insert(transfer.lane, transfer.sequence, slot);
  }
  RC_ASSERT(is_new, cat("lane ", int{transfer.lane}, " sequence ", transfer.sequence,
                        " is sent twice to peer ", transfer.peer));
  return {};
}

bool Outbound::goes_ahead(const Progress& send, bool is_announced) const {
  return send.bytes <= (is_announced ? announced_bytes_max_ : kEagerBytes) &&
         send.pieces.size() <= kEagerPieces &&
         eager_bytes_ + send.bytes + kEagerCost <= eager_bytes_max_;
}

std::string Outbound::granted(Lane lane, uint64_t sequence, uint64_t bytes) {
  if (const uint32_t* slot = waiting_.get(lane, sequence)) {
    const uint64_t sends = sends_[*slot].bytes;
    if (sends != bytes) return misfit(lane, sequence, bytes, sends);
    ready_.push(*slot);
    waiting_.erase(lane, sequence);
    return "";
  }
  if (const uint64_t* ahead = eager_.get(lane, sequence)) {
    const uint64_t sends = *ahead;
    eager_.erase(lane, sequence);
    eager_bytes_ -= sends + kEagerCost;
    return sends == bytes ? "" : misfit(lane, sequence, bytes, sends);
  }
  if (grants_.size() >= kTransfersMax) return "granted more transfers than it may";
  if (!grants_.insert(lane, sequence, bytes)) {
    return cat("granted a transfer twice (lane ", int{lane}, ", sequence ", sequence, ")");
  }
  return "";
}

// Adds data frames while they fit one call. All but the last complete their transfers. So when the
// kernel returns, each frame belongs to the transfer at the front.
void Outbound::plan_frames(Plan& plan) {
  std::size_t next = 0;  // into ready_
  if (current_) {
    Progress& send = sends_[ready_.front()];
    if (current_->header_left > 0) {
      plan.add(current_->header.data() + kHeaderBytes - current_->header_left,
               current_->header_left);
    }
    const std::size_t named = send.gather(current_->payload_left, plan.iovecs, plan.iovec_count);
    plan.bytes += named;
    if (send.done + named < send.bytes) return;
    next = 1;
  }
  put_late();
  if (!urgent_.empty()) {
    plan.urgent = urgent_.size();
    plan.add(urgent_.data(), plan.urgent);
  }
  for (; next < ready_.size() && plan.frame_count < kFramesPerCall; ++next) {
    Progress& send = sends_[ready_[next]];
    const bool ahead = eager_.contains(send.lane, send.sequence);
    const std::size_t iovecs = 1 + (ahead ? send.pieces.size() : 1);
    if (plan.bytes >= call_bytes_max_ || plan.iovec_count + iovecs > kIovecsPerSend) return;
    Frame& frame = plan.frames[plan.frame_count++];
    plan.add(frame.header.data(), kHeaderBytes);
    const uint64_t left = send.bytes - send.done;
    const std::size_t named = send.gather(ahead ? left : std::min<uint64_t>(left, call_bytes_max_),
                                          plan.iovecs, plan.iovec_count);
    plan.bytes += named;
    frame.header = encode({.kind = ahead ? Kind::eager : Kind::data,
                           .lane = send.lane,
                           .epoch = epoch_,
                           .bytes = static_cast<uint32_t>(named),
                           .sequence = send.sequence,
                           .position = send.done});
    frame.header_left = kHeaderBytes;
    frame.payload_left = named;
    if (named < left) return;
  }
}

Outbound::Result Outbound::write(int socket, Sink& sink) {
  Result result = Result::idle;
  for (std::size_t total = 0; has_output() && total < write_bytes_max_;) {
    Plan plan;
    plan_frames(plan);
    msghdr message{};
    message.msg_iov = plan.iovecs.data();
    message.msg_iovlen = plan.iovec_count;
    const ssize_t written = ::sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (written < 0) {
      if (errno == EINTR) continue;
      return errno == EAGAIN || errno == EWOULDBLOCK ? Result::blocked : Result::broken;
    }
    result = Result::moved;
    total += static_cast<std::size_t>(written);
    consume(plan, static_cast<std::size_t>(written), sink);
    // The kernel has noted that we want more room, and reports when there is some.
    if (static_cast<std::size_t>(written) < plan.bytes) return Result::blocked;
  }
  return result;
}

void Outbound::consume(Plan& plan, std::size_t written, Sink& sink) {
  if (current_) {
    if (!consume_frame(*current_, written, sink)) return;
    current_.reset();
  }
  const std::size_t urgent = std::min(written, plan.urgent);
  urgent_.pop(urgent);
  written -= urgent;
  for (std::size_t i = 0; i < plan.frame_count && written > 0; ++i) {
    if (!consume_frame(plan.frames[i], written, sink)) {
      current_ = plan.frames[i];
      return;
    }
  }
}

// Takes the frame's share of `written`. Returns true when the frame is fully written.
bool Outbound::consume_frame(Frame& frame, std::size_t& written, Sink& sink) {
  const std::size_t header = std::min(written, frame.header_left);
  frame.header_left -= header;
  written -= header;
  const std::size_t payload = std::min(written, frame.payload_left);
  frame.payload_left -= payload;
  written -= payload;
  sends_[ready_.front()].advance(payload);
  counters_.bytes_sent += payload;
  if (frame.header_left > 0 || frame.payload_left > 0) return false;
  frame_done(sink);
  return true;
}

void Outbound::frame_done(Sink& sink) {
  const uint32_t slot = ready_.front();
  Progress& send = sends_[slot];
  if (send.done == send.bytes) {
    ready_.pop();
    if (send.beside > 0) return;
    sends_.give_back(slot);
    sink.sent(send.cookie);
  } else if (send.turn >= chunk_bytes_) {  // other transfers have a turn
    send.turn = 0;
    ready_.pop();
    ready_.push(slot);
  }
}

// No stream takes much more than a stripe in one turn. Large transfers wait for their grants, so
// that further streams can take stripes of them.
void Outbound::share(uint64_t stripe_bytes) {
  announced_bytes_max_ = kEagerBytes;
  stripe_bytes_ = stripe_bytes;
  call_bytes_max_ = std::max<std::size_t>(stripe_bytes, kEagerBytes);
  write_bytes_max_ = std::min(kWriteBytesPerPoll, call_bytes_max_);
}

bool Outbound::has_stripe() const {
  std::size_t at = 0;
  return find_stripe(at).bytes > 0;
}

// Finds a stripe to cut. `at` becomes its transfer's index in ready_.
Stripe Outbound::find_stripe(std::size_t& at) const {
  for (at = 0; at < std::min(ready_.size(), kSendsSearched); ++at) {
    const Progress& send = sends_[ready_[at]];
    if (send.bytes <= kEagerBytes || eager_.contains(send.lane, send.sequence)) continue;
    std::optional<uint64_t> taken;
    if (at == 0 || send.done > 0) taken = send.done;
    if (at == 0 && current_) *taken += current_->payload_left;
    const Stripe stripe = last_stripe(taken, send.bytes, stripe_bytes_);
    if (stripe.bytes > 0) return stripe;
  }
  return {};
}

bool Outbound::take_stripe(Header& header, Progress& part, uint32_t& slot) {
  std::size_t at = 0;
  const Stripe stripe = find_stripe(at);
  if (stripe.bytes == 0) return false;
  slot = ready_[at];
  Progress& send = sends_[slot];
  begin_stripe(send, stripe, part);
  send.bytes -= stripe.bytes;
  send.beside += stripe.bytes;
  if (send.bytes == 0) ready_.erase(at);
  header = {.kind = Kind::data,
            .lane = send.lane,
            .epoch = epoch_,
            .bytes = static_cast<uint32_t>(stripe.bytes),
            .sequence = send.sequence,
            .position = stripe.begin};
  return true;
}

void Outbound::stripe_sent(uint32_t slot, uint64_t bytes, Sink& sink) {
  Progress& send = sends_[slot];
  send.beside -= bytes;
  if (send.beside > 0 || send.done < send.bytes) return;
  sends_.give_back(slot);
  sink.sent(send.cookie);
}

void Outbound::clear() {
  late_.clear();
  late_bytes_ = 0;
  urgent_.clear();
  current_.reset();
  ready_.clear();
  waiting_.clear();
  grants_.clear();
  eager_.clear();
  eager_bytes_ = 0;
  sends_.clear();
  fault_.clear();
}

}  // namespace rdmacoll::tcp
