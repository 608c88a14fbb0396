#include "transport/shm/greeting.h"

#include <sys/socket.h>

#include <cerrno>
#include <cstring>

#include "base/event.h"
#include "base/system_error.h"
#include "base/text.h"
#include "base/wire.h"
#include "transport/closing.h"

namespace rdmacoll::shm {
namespace {

constexpr uint32_t kMagic = 0x6d687372;  // "rshm"
constexpr uint32_t kVersion = 3;

std::vector<std::byte> bytes_of(const Writer& writer) {
  return {writer.bytes().begin(), writer.bytes().end()};
}

Status malformed(std::string_view what) {
  return Status(Code::failed, cat("its greeting is malformed: ", what));
}

}  // namespace

void SocketMessage::prepare(std::span<const std::byte> bytes, std::span<const int> descriptors) {
  RC_ASSERT(descriptors.size() <= kPassedMax);
  out_.assign(bytes.begin(), bytes.end());
  out_done_ = 0;
  descriptors_count_ = descriptors.size();
  std::copy(descriptors.begin(), descriptors.end(), descriptors_.begin());
}

void SocketMessage::expect(std::size_t bytes, std::size_t descriptors) {
  in_.assign(bytes, std::byte{0});
  in_done_ = 0;
  passed_count_ = 0;
  passed_expected_ = descriptors;
}

Status SocketMessage::send(int socket) {
  while (out_done_ < out_.size()) {
    iovec vector{out_.data() + out_done_, out_.size() - out_done_};
    msghdr message{};
    message.msg_iov = &vector;
    message.msg_iovlen = 1;
    alignas(cmsghdr) std::array<std::byte, CMSG_SPACE(kPassedMax * sizeof(int))> control{};
    if (out_done_ == 0 && descriptors_count_ > 0) {
      message.msg_control = control.data();
      message.msg_controllen = CMSG_SPACE(descriptors_count_ * sizeof(int));
      cmsghdr* header = CMSG_FIRSTHDR(&message);
      header->cmsg_level = SOL_SOCKET;
      header->cmsg_type = SCM_RIGHTS;
      header->cmsg_len = CMSG_LEN(descriptors_count_ * sizeof(int));
      std::memcpy(CMSG_DATA(header), descriptors_.data(), descriptors_count_ * sizeof(int));
    }
    const ssize_t sent = ::sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return Status::busy();
    // The reading side reports a broken pipe, after it has read the remaining bytes.
    if (sent < 0 && errno == EPIPE) return Status::busy();
    if (sent < 0) return Status(Code::failed, closing_cause(errno));
    out_done_ += static_cast<std::size_t>(sent);
  }
  return {};
}

Status SocketMessage::receive(int socket) {
  while (in_done_ < in_.size()) {
    iovec vector{in_.data() + in_done_, in_.size() - in_done_};
    msghdr message{};
    message.msg_iov = &vector;
    message.msg_iovlen = 1;
    alignas(cmsghdr) std::array<std::byte, CMSG_SPACE(kPassedMax * sizeof(int))> control{};
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    const ssize_t got = ::recvmsg(socket, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return Status::busy();
    if (got <= 0) return Status(Code::failed, closing_cause(got == 0 ? 0 : errno));
    for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr;
         header = CMSG_NXTHDR(&message, header)) {
      if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
      const std::size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
      for (std::size_t i = 0; i < count; ++i) {
        int descriptor = -1;
        std::memcpy(&descriptor, CMSG_DATA(header) + i * sizeof(int), sizeof descriptor);
        Fd owned(descriptor);  // owned before any check, so that no descriptor leaks
        if (passed_count_ < kPassedMax) passed_[passed_count_] = std::move(owned);
        ++passed_count_;
      }
    }
    if ((message.msg_flags & MSG_CTRUNC) != 0) {
      // All received descriptors are held. If one more cannot be made, this process is at its
      // limit.
      if (!make_event()) return system_error("cannot take its descriptors", errno);
      return malformed("descriptors were lost");
    }
    in_done_ += static_cast<std::size_t>(got);
  }
  if (passed_count_ != passed_expected_) {
    return malformed(cat(passed_count_, " descriptors instead of ", passed_expected_));
  }
  return {};
}

std::vector<std::byte> encode(const Hello& hello) {
  Writer writer;
  writer.put(kMagic).put(kVersion).put(hello.epoch).put(hello.rank).put(hello.pid);
  writer.put(hello.pool_base).put(hello.pool_bytes);
  writer.put(hello.probe_address).put(hello.probe_value);
  return bytes_of(writer);
}

Status decode(std::span<const std::byte> bytes, Hello& hello) {
  Reader reader(bytes);
  const auto magic = reader.get<uint32_t>();
  const auto version = reader.get<uint32_t>();
  hello.epoch = reader.get<uint32_t>();
  hello.rank = reader.get<int32_t>();
  hello.pid = reader.get<int64_t>();
  hello.pool_base = reader.get<uint64_t>();
  hello.pool_bytes = reader.get<uint64_t>();
  hello.probe_address = reader.get<uint64_t>();
  hello.probe_value = reader.get<uint64_t>();
  if (!reader.done() || magic != kMagic) return malformed("not one of the shm transport");
  if (version != kVersion) return malformed(cat("version ", version, " instead of ", kVersion));
  return {};
}

std::vector<std::byte> encode(Verdict verdict) {
  Writer writer;
  writer.put(verdict);
  return bytes_of(writer);
}

Status decode(std::span<const std::byte> bytes, Verdict& verdict) {
  Reader reader(bytes);
  verdict = reader.get<Verdict>();
  const bool known = verdict == Verdict::can_read || verdict == Verdict::cannot_read;
  return reader.done() && known ? Status() : malformed("an unknown verdict");
}

}  // namespace rdmacoll::shm
