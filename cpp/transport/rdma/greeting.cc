#include "transport/rdma/greeting.h"

#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <span>

#include "base/text.h"
#include "base/wire.h"
#include "transport/closing.h"

namespace rdmacoll::rdma {
namespace {

constexpr uint32_t kGreetingMagic = 0x616d6472;  // "rdma"
constexpr uint32_t kVersion = 1;
constexpr std::size_t kLastBytesMax = 1000;

void put(Writer& writer, const GreetingEnd& rail) {
  writer.put(rail.link).put(rail.end.queue_pair).put(rail.end.first_packet);
  writer.put(rail.end.lid).put(rail.end.mtu);
  for (const uint8_t byte : rail.end.gid.raw) writer.put(byte);
}

GreetingEnd get_rail(Reader& reader) {
  GreetingEnd rail;
  rail.link = reader.get<LinkLayer>();
  rail.end.queue_pair = reader.get<uint32_t>();
  rail.end.first_packet = reader.get<uint32_t>();
  rail.end.lid = reader.get<uint16_t>();
  rail.end.mtu = reader.get<uint32_t>();
  for (uint8_t& byte : rail.end.gid.raw) byte = reader.get<uint8_t>();
  return rail;
}

}  // namespace

std::string GreetingEnd::text() const {
  return link == LinkLayer::infiniband ? cat("LID ", end.lid) : cat("GID ", end.gid.text());
}

std::vector<std::byte> encode(const Greeting& greeting) {
  Writer writer;
  writer.put(kGreetingMagic).put(kVersion).put(greeting.epoch).put(greeting.rank);
  writer.put(greeting.eager_bytes).put(greeting.chunk_bytes).put(greeting.receives);
  writer.put(static_cast<uint32_t>(greeting.rails.size()));
  for (std::size_t i = 0; i < kRailsMax; ++i) {
    put(writer, i < greeting.rails.size() ? greeting.rails[i] : GreetingEnd{});
  }
  return {writer.bytes().begin(), writer.bytes().end()};
}

std::size_t greeting_bytes() { return encode(Greeting{}).size(); }

std::string decode(std::span<const std::byte> bytes, Greeting& greeting) {
  Reader reader(bytes);
  const auto magic = reader.get<uint32_t>();
  const auto version = reader.get<uint32_t>();
  if (magic != kGreetingMagic) return "its greeting is not one of an RDMA transport";
  if (version != kVersion) {
    return cat("it speaks version ", version, " of the RDMA protocol, this rank ", kVersion);
  }
  greeting.epoch = reader.get<uint32_t>();
  greeting.rank = reader.get<int32_t>();
  greeting.eager_bytes = reader.get<uint32_t>();
  greeting.chunk_bytes = reader.get<uint32_t>();
  greeting.receives = reader.get<uint32_t>();
  const auto rails = reader.get<uint32_t>();
  greeting.rails.clear();
  for (std::size_t i = 0; i < kRailsMax; ++i) {
    const GreetingEnd rail = get_rail(reader);
    if (i < rails) greeting.rails.push_back(rail);
  }
  const bool sound = reader.done() && rails >= 1 && rails <= kRailsMax &&
                     greeting.chunk_bytes > 0 && greeting.receives > 1;
  return sound ? "" : "its greeting is malformed";
}

Status GreetingSocket::turn(bool& heard) {
  heard = false;
  while (!out_.empty()) {
    const ssize_t sent =
        ::send(socket_.get(), out_.data(), out_.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && errno == EINTR) continue;
    // The socket is full or broken. Reading reports a broken one, after the remaining bytes.
    if (sent <= 0) break;
    out_.erase(out_.begin(), out_.begin() + sent);
  }
  std::array<std::byte, 512> bytes;
  while (true) {
    const ssize_t got = ::recv(socket_.get(), bytes.data(), bytes.size(), MSG_DONTWAIT);
    if (got > 0) {
      heard = true;
      in_.insert(in_.end(), bytes.begin(), bytes.begin() + got);
      if (in_.size() > 64 * bytes.size()) return {Code::failed, "it floods its socket"};
      continue;
    }
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return {};
    return {Code::failed, closing_cause(got == 0 ? 0 : errno)};
  }
}

bool GreetingSocket::take(std::size_t bytes, std::vector<std::byte>& into) {
  if (in_.size() < bytes) return false;
  into.assign(in_.begin(), in_.begin() + static_cast<std::ptrdiff_t>(bytes));
  in_.erase(in_.begin(), in_.begin() + static_cast<std::ptrdiff_t>(bytes));
  return true;
}

bool GreetingSocket::take_word(Word& word) {
  if (in_.empty() || in_.front() == static_cast<std::byte>(Word::failed)) return false;
  word = static_cast<Word>(in_.front());
  in_.erase(in_.begin());
  return true;
}

void GreetingSocket::send_last(const std::string& why) {
  if (!socket_) return;
  say(Word::failed);
  say(std::as_bytes(std::span(why)));
  ::send(socket_.get(), out_.data(), out_.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  out_.clear();
}

std::string GreetingSocket::last_message() const {
  if (in_.empty() || in_.front() != static_cast<std::byte>(Word::failed)) return "";
  return {reinterpret_cast<const char*>(in_.data()) + 1, std::min(in_.size() - 1, kLastBytesMax)};
}

void GreetingSocket::close() {
  if (!socket_) return;
  // shutdown() is needed since a forked child may hold a copy of the socket.
  ::shutdown(socket_.get(), SHUT_RDWR);
  socket_.reset();
}

}  // namespace rdmacoll::rdma
