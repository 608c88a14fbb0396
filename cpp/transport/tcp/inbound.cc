#include "transport/tcp/inbound.h"

#include <sys/socket.h>

#include <cerrno>

#include "base/text.h"
#include "transport/closing.h"

namespace rdmacoll::tcp {
namespace {

// What one poll reads from one peer before the others have their turn.
constexpr std::size_t kReadBytesPerPoll = 1024 * 1024;

// With more payload than this to come, only the next header is read behind it: whatever else lands
// in the buffer must be copied once more.
constexpr std::size_t kCopyBytesMax = 8 * 1024;

constexpr std::size_t kIovecsPerReceive = 64;

}  // namespace

Status Inbound::post_recv(const Transfer& transfer) {
  if (receives_.used() >= kTransfersMax) return Status::busy();
  const uint32_t slot = receives_.take(transfer);
  RC_ASSERT(receives_[slot].bytes <= kTransferBytesMax, cat(receives_[slot].bytes, " B"));
  const bool is_new = posted_.insert(transfer.lane, transfer.sequence, slot);
  RC_ASSERT(is_new, cat("lane ", int{transfer.lane}, " sequence ", transfer.sequence,
                        " is received twice from peer ", transfer.peer));
  return {};
}

Inbound::Result Inbound::read(int socket, bool hangup, Outbound& outbound, Sink& sink) {
  Result result;
  for (std::size_t total = 0; total < kReadBytesPerPoll;) {
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
    // A short read has emptied the socket; what comes later is announced again.
    if (static_cast<std::size_t>(count) < wanted && !hangup) {
      result.drained = true;
      return result;
    }
  }
  return result;
}

// One system call: the payload that is due straight into its place, then the buffer.
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

// Consumes the buffer as far as whole things are in it; returns what is wrong, or "".
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
  if (slot == nullptr) return cat("sent data without a grant", where());
  const Progress& receive = receives_[*slot];
  if (frame_.position != receive.done) {
    return cat("sent data at byte ", frame_.position, ", expected ", receive.done, where());
  }
  if (frame_.bytes > receive.bytes - receive.done) return cat("sent too much data", where());
  if (frame_.bytes == 0 && receive.bytes > 0) return cat("sent an empty piece", where());
  slot_ = *slot;
  state_ = State::data;
  return "";
}

void Inbound::take_control(Sink& sink) {
  const std::size_t count = std::min(left_, buffered());
  const auto bytes = std::span<const std::byte>(buffer_).subspan(begin_, count);
  begin_ += count;
  left_ -= count;
  if (left_ > 0 || !message_.empty()) {  // it came, or comes, in several reads
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
  Progress& receive = receives_[slot_];
  if (receive.done < receive.bytes) return;
  posted_.erase(receive.lane, receive.sequence);
  receives_.give_back(slot_);
  sink.received(receive.cookie);
}

void Inbound::clear() {
  begin_ = end_ = left_ = 0;
  state_ = State::header;
  message_.clear();
  posted_.clear();
  receives_.clear();
}

}  // namespace rdmacoll::tcp
