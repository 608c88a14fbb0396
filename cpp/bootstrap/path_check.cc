#include "bootstrap/path_check.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <array>
#include <cstring>

#include "base/text.h"
#include "bootstrap/sockets.h"

namespace rdmacoll {
namespace {

// Interfaces have larger segments only within a host, where no frame is lost.
constexpr int kSegmentBytesMax = 16 << 10;

// Within this time answers arrive, except on paths that lose much.
constexpr Nanoseconds kAnswerTime = 2 * kSecond;

// The place of tcpi_bytes_acked in the kernel's struct tcp_info. The C library's may be shorter.
constexpr std::size_t kBytesAckedAt = 120;

int segment_bytes_of(int socket) {
  int bytes = 0;
  socklen_t length = sizeof bytes;
  return ::getsockopt(socket, IPPROTO_TCP, TCP_MAXSEG, &bytes, &length) == 0 ? bytes : -1;
}

// The bytes of this side that the other kernel has acknowledged. False if this kernel does not say.
bool acked_bytes(int socket, uint64_t& bytes) {
  std::array<std::byte, 256> info{};
  socklen_t length = info.size();
  if (::getsockopt(socket, IPPROTO_TCP, TCP_INFO, info.data(), &length) != 0) return false;
  if (length < kBytesAckedAt + sizeof bytes) return false;
  std::memcpy(&bytes, info.data() + kBytesAckedAt, sizeof bytes);
  return true;
}

}  // namespace

void PathCheck::begin(int socket, Nanoseconds now) {
  const int bytes = segment_bytes_of(socket);
  if (bytes < 0) return;
  segment_bytes_ = bytes > kSegmentBytesMax ? 0 : static_cast<uint32_t>(bytes);
  deadline_ = now + kPathTimeout;
  is_answered_ = is_answer_sent_ = false;
  if (!acked_bytes(socket, acked_before_)) acked_before_ = 0;
  // One segment with its length. Data that fills several segments may be cut on the way, by virtual
  // devices.
  const std::size_t zeros =
      segment_bytes_ > sizeof(uint32_t) ? segment_bytes_ - sizeof(uint32_t) : 0;
  const auto length = static_cast<uint32_t>(zeros);
  output_.resize(sizeof length + zeros);
  std::memcpy(output_.data(), &length, sizeof length);
}

Status PathCheck::advance(int socket, Nanoseconds now) {
  if (done()) return {};
  Status status = write(socket);
  if (status.ok()) status = read(socket);
  if (status.ok()) status = write(socket);
  if (status.ok()) {
    if (done() || now < deadline_) return {};
    status = {Code::failed, cat("it does not answer within ", kPathTimeout / kSecond, " s")};
  }
  // The other side may have come to the same verdict first, and have closed the connection.
  has_found_fault_ = now >= deadline_ - kPathTimeout + kAnswerTime && is_held_up(socket);
  if (!has_found_fault_) return status;
  return {
      Code::failed,
      cat("frames of ", segment_bytes_, " bytes do not reach it within ", kPathTimeout / kSecond,
          " s, but small ones do: a switch or an interface on the way has ",
          "a smaller MTU. Give the interfaces of all hosts the MTU that the whole path carries ",
          "(ip link set dev NAME mtu 1500; it is found by ping -M do -s SIZE)")};
}

// Whether the segment has not arrived. A stopped process does not count: its kernel still takes the
// segment.
bool PathCheck::is_held_up(int socket) const {
  uint64_t acked = 0;
  return segment_bytes_ > 0 && written_ >= segment_bytes_ && acked_bytes(socket, acked) &&
         acked < acked_before_ + segment_bytes_;
}

Status PathCheck::write(int socket) { return send_available(socket, output_, written_); }

Status PathCheck::read(int socket) {
  while (!is_answered_ || !is_answer_sent_) {
    bool has_ended = false;
    RC_RETURN_IF_ERROR(receive_available(socket, input_, filled_, has_ended));
    if (has_ended) return {Code::failed, "it closed the connection"};
    if (filled_ < input_.size()) return {};
    RC_RETURN_IF_ERROR(take());
  }
  return {};
}

Status PathCheck::take() {
  filled_ = 0;
  if (expected_ == Expected::length) {
    uint32_t length = 0;
    std::memcpy(&length, input_.data(), sizeof length);
    if (length > kSegmentBytesMax) {
      return {Code::failed, cat("it sends a segment of ", length, " bytes")};
    }
    input_.resize(length);
    expected_ = Expected::segment;
    if (length > 0) return {};
  }
  if (expected_ == Expected::segment) {
    output_.push_back(std::byte{1});
    is_answer_sent_ = true;
    input_.resize(1);
    expected_ = Expected::answer;
    return {};
  }
  is_answered_ = true;
  return {};
}

}  // namespace rdmacoll
