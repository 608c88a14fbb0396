#include "transport/tcp/inbound.h"

#include <sys/socket.h>

#include <cerrno>

#include "base/text.h"
#include "transport/closing.h"

namespace rdmacoll::tcp {
namespace {

// If more payload than this is due, the buffer takes only the next header behind it. Other bytes in
// the buffer would have to be copied once more.
constexpr std::size_t kCopyBytesMax = 8 * 1024;

constexpr std::size_t kIovecsPerReceive = 64;

}  // namespace

Status Inbound::post_recv(const Transfer& transfer, bool& came_first) {
  if (receives_.used() >= kTransfersMax) return Status::busy();
  const uint32_t slot = receives_.take(transfer);
  RC_ASSERT(receives_[slot].bytes <= kTransferBytesMax, cat(receives_[slot].bytes, " B"));
  const bool is_kept = early_.contains(transfer.lane, transfer.sequence);
  const bool is_held =
      state_ == State::held && frame_.lane == transfer.lane && frame_.sequence == transfer.sequence;
  came_first = is_kept || is_held;
  if (is_kept) {
    claim(transfer, slot);
    return {};
  }
  const bool is_new = posted_.insert(transfer.lane, transfer.sequence, slot);
  RC_ASSERT(is_new, cat("lane ", int{transfer.lane}, " sequence ", transfer.sequence,
                        " is received twice from peer ", transfer.peer));
  return {};
}

// Moves the bytes of an early transfer into its receive. The receive takes the further bytes.
void Inbound::claim(const Transfer& transfer, uint32_t slot) {
  const Early early = *early_.get(transfer.lane, transfer.sequence);
  const Progress& ahead = receives_[early.slot];
  Progress& receive = receives_[slot];
  if (ahead.bytes != receive.bytes) {
    fault_ = cat("sent ", ahead.bytes, " B for a transfer of ", receive.bytes, " B (lane ",
                 int{transfer.lane}, ", sequence ", transfer.sequence, ")");
    receives_.give_back(slot);
    return;
  }
  receive.copy_in(std::span<const std::byte>(aside_[early.memory]).first(ahead.done));
  counters_.bytes_copied += ahead.done;
  if (receive.done == receive.bytes) {
    if (transfer.is_done != nullptr) {
      *transfer.is_done = true;
    } else {
      ended_.push_back(receive.cookie);
    }
    receives_.give_back(slot);
  } else {
    const bool is_new = posted_.insert(transfer.lane, transfer.sequence, slot);
    RC_ASSERT(is_new && is_early_ && slot_ == early.slot);
    slot_ = slot;
    is_early_ = false;
  }
  early_.erase(transfer.lane, transfer.sequence);
  early_bytes_ -= ahead.bytes + kEagerCost;
  // Large buffers are released, since they would pile up among the small ones.
  if (aside_[early.memory].capacity() > kCopyBytesMax) aside_[early.memory] = {};
  aside_.give_back(early.memory);
  receives_.give_back(early.slot);
}

bool Inbound::report(Sink& sink) {
  if (ended_.empty()) return false;
  for (const uint64_t cookie : ended_) sink.received(cookie);
  ended_.clear();
  return true;
}

Inbound::Result Inbound::read(int socket, bool hangup, Outbound& outbound, Sink& sink) {
  Result result;
  if (state_ == State::held) {
    result.moved = true;
    result.ended = begin_data();
    if (result.ended.empty()) result.ended = parse(outbound, sink);
    if (!result.ended.empty()) return result;
  }
  for (std::size_t total = 0; total < kReadBytesPerPoll && state_ != State::held;) {
    std::size_t wanted = 0;
    const ssize_t count = receive(socket, wanted);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
      result.drained = true;
      return result;
    }
    if (count <= 0) {
      result.ended = closing_cause(count == 0 ? 0 : errno);
      return result;
    }
    result.moved = true;
    total += static_cast<std::size_t>(count);
    result.ended = parse(outbound, sink);
    if (!result.ended.empty()) return result;
    // A short read has emptied the socket. epoll announces later bytes.
    if (static_cast<std::size_t>(count) < wanted && !hangup) {
      result.drained = true;
      return result;
    }
  }
  return result;
}

// Makes one system call: reads the due payload straight into its place, then fills the buffer.
ssize_t Inbound::receive(int socket, std::size_t& wanted) {
  std::array<iovec, kIovecsPerReceive> iovecs;
  std::size_t used = 0;
  std::size_t direct = 0;
  std::size_t tail = 0;
  if (state_ == State::data) {
    RC_ASSERT(buffered() == 0 && left_ > 0);
    direct = receives_[slot_].gather(left_, std::span(iovecs).first(kIovecsPerReceive - 1), used);
    if (direct == left_) tail = left_ > kCopyBytesMax ? kHeaderBytes : kBufferBytes;
    begin_ = end_ = 0;
  } else {
    if (begin_ > 0) {
      std::memmove(buffer_.data(), buffer_.data() + begin_, buffered());
      end_ -= begin_;
      begin_ = 0;
    }
    tail = kBufferBytes - end_;
  }
  if (tail > 0) iovecs[used++] = iovec{buffer_.data() + end_, tail};
  wanted = direct + tail;
  msghdr message{};
  message.msg_iov = iovecs.data();
  message.msg_iovlen = used;
  const ssize_t count = ::recvmsg(socket, &message, MSG_DONTWAIT);
  if (count <= 0) return count;
  const std::size_t placed = std::min(static_cast<std::size_t>(count), direct);
  if (placed > 0) {
    receives_[slot_].advance(placed);
    left_ -= placed;
    counters_.bytes_received += placed;
  }
  end_ += static_cast<std::size_t>(count) - placed;
  return count;
}

// Consumes complete frames of the buffer. Returns "" or the error.
std::string Inbound::parse(Outbound& outbound, Sink& sink) {
  while (true) {
    switch (state_) {
      case State::header: {
        if (buffered() < kHeaderBytes) return "";
        std::string wrong = begin_frame(outbound);
        if (!wrong.empty()) return wrong;
        break;
      }
      case State::control:
        take_control(sink);
        if (state_ == State::control) return "";
        break;
      case State::held:
        return "";
      case State::data:
        take_data();
        if (left_ > 0) return "";
        end_data(sink);
        break;
    }
  }
}

std::string Inbound::begin_frame(Outbound& outbound) {
  const auto bytes = std::span<const std::byte>(buffer_).subspan(begin_).first<kHeaderBytes>();
  const std::string wrong = decode(bytes, epoch_, frame_);
  if (!wrong.empty()) return cat("sent ", wrong);
  begin_ += kHeaderBytes;
  left_ = frame_.bytes;
  switch (frame_.kind) {
    case Kind::control:
      state_ = State::control;
      return "";
    case Kind::grant:
      return outbound.granted(frame_.lane, frame_.sequence, frame_.position);
    case Kind::eager:
    case Kind::data:
      return begin_data();
    case Kind::heartbeat:
      return "";
  }
  return "sent a frame of an unknown kind";  // decode() has refused it
}

std::string Inbound::begin_data() {
  const auto where = [&] {
    return cat(" (lane ", int{frame_.lane}, ", sequence ", frame_.sequence, ")");
  };
  const uint32_t* slot = posted_.get(frame_.lane, frame_.sequence);
  if (slot == nullptr && frame_.kind == Kind::eager) {
    if (frame_.bytes <= kEagerBytes || state_ == State::held) return begin_early();
    state_ = State::held;
    return "";
  }
  if (slot == nullptr) return cat("sent data without a grant", where());
  const Progress& receive = receives_[*slot];
  if (frame_.position != receive.done) {
    return cat("sent data at byte ", frame_.position, ", expected ", receive.done, where());
  }
  if (frame_.bytes > receive.bytes - receive.done) return cat("sent too much data", where());
  if (frame_.bytes == 0 && receive.bytes > 0) return cat("sent an empty piece", where());
  if (frame_.kind == Kind::eager && frame_.bytes < receive.bytes) {
    return cat("sent ", frame_.bytes, " B for a transfer of ", receive.bytes, " B", where());
  }
  slot_ = *slot;
  is_early_ = false;
  state_ = State::data;
  return "";
}

std::string Inbound::begin_early() {
  early_bytes_ += frame_.bytes + kEagerCost;
  if (early_bytes_ > eager_bytes_max_) return "sent more than it may ahead of grants";
  const uint32_t memory = aside_.take();
  aside_[memory].resize(frame_.bytes);
  const Piece place{aside_[memory].data(), frame_.bytes};
  slot_ = receives_.take({.lane = frame_.lane, .sequence = frame_.sequence, .pieces = {&place, 1}});
  if (!early_.insert(frame_.lane, frame_.sequence, {slot_, memory})) {
    return cat("sent a transfer twice (lane ", int{frame_.lane}, ", sequence ", frame_.sequence,
               ")");
  }
  is_early_ = true;
  state_ = State::data;
  return "";
}

void Inbound::take_control(Sink& sink) {
  const std::size_t count = std::min(left_, buffered());
  const auto bytes = std::span<const std::byte>(buffer_).subspan(begin_, count);
  begin_ += count;
  left_ -= count;
  if (left_ > 0 || !message_.empty()) {  // the message comes in several reads
    message_.insert(message_.end(), bytes.begin(), bytes.end());
    if (left_ > 0) return;
    sink.control(peer_, message_);
    message_.clear();
  } else {
    sink.control(peer_, bytes);
  }
  state_ = State::header;
}

void Inbound::take_data() {
  const std::size_t count = std::min(left_, buffered());
  if (count == 0) return;
  receives_[slot_].copy_in(std::span<const std::byte>(buffer_).subspan(begin_, count));
  begin_ += count;
  left_ -= count;
  counters_.bytes_received += count;
  counters_.bytes_copied += count;
}

void Inbound::end_data(Sink& sink) {
  state_ = State::header;
  if (!is_early_) end_receive(slot_, sink);
}

// Ends the receive if all of its bytes are there.
void Inbound::end_receive(uint32_t slot, Sink& sink) {
  Progress& receive = receives_[slot];
  if (receive.done < receive.bytes || receive.beside > 0) return;
  posted_.erase(receive.lane, receive.sequence);
  receives_.give_back(slot);
  sink.received(receive.cookie);
}

// Stripes are cut off the end of the bytes of the first stream, in any order. The start of the
// first stripe becomes `bytes`. The missing bytes after it are counted in `beside`.
std::string Inbound::begin_stripe(const Header& frame, Progress& part, uint32_t& slot) {
  const auto where = [&] {
    return cat(" at byte ", frame.position, " (lane ", int{frame.lane}, ", sequence ",
               frame.sequence, ")");
  };
  const uint32_t* posted = posted_.get(frame.lane, frame.sequence);
  if (posted == nullptr) return cat("sent data without a grant", where());
  slot = *posted;
  Progress& receive = receives_[slot];
  const uint64_t whole = total_bytes(receive.pieces);
  const Stripe stripe{frame.position, frame.bytes};
  if (!is_stripe(stripe, whole, stripe_bytes_)) {
    return cat("sent a stripe of ", frame.bytes, " B of ", whole, " B", where());
  }
  if (slot >= stripes_.size()) stripes_.resize(receives_.size());
  std::vector<bool>& begun = stripes_[slot];
  if (receive.bytes == whole) begun.assign(whole / stripe_bytes_ + 1, false);
  const bool is_current = state_ == State::data && !is_early_ && slot_ == slot;
  const uint64_t first = receive.done + (is_current ? left_ : 0);
  if (frame.position < first || begun[frame.position / stripe_bytes_]) {
    return cat("sent a stripe twice", where());
  }
  begun[frame.position / stripe_bytes_] = true;
  if (frame.position < receive.bytes) {
    receive.beside += receive.bytes - frame.position;
    receive.bytes = frame.position;
  }
  tcp::begin_stripe(receive, stripe, part);
  return "";
}

void Inbound::stripe_received(uint32_t slot, uint64_t bytes, Sink& sink) {
  receives_[slot].beside -= bytes;
  end_receive(slot, sink);
}

void Inbound::clear() {
  begin_ = end_ = left_ = 0;
  state_ = State::header;
  message_.clear();
  posted_.clear();
  early_.clear();
  early_bytes_ = 0;
  aside_.clear();
  ended_.clear();
  fault_.clear();
  receives_.clear();
}

}  // namespace rdmacoll::tcp
