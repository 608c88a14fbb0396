#include "transport/tcp/frame.h"

#include <cstring>

#include "base/text.h"
#include "base/wire.h"

namespace rdmacoll::tcp {
namespace {

std::string check(const Header& header) {
  switch (header.kind) {
    case Kind::control:
      if (header.bytes > kControlBytesMax) return cat("a control message of ", header.bytes, " B");
      if (header.lane != 0 || header.sequence != 0 || header.position != 0) {
        return "a control message with a lane";
      }
      return "";
    case Kind::grant:
      if (header.bytes != 0) return "a grant with a payload";
      if (header.position > kTransferBytesMax) return cat("a grant of ", header.position, " B");
      return "";
    case Kind::data:
      if (header.bytes > kFragmentBytes) return cat("a data frame of ", header.bytes, " B");
      if (header.position > kTransferBytesMax) return cat("data at byte ", header.position);
      return "";
    case Kind::eager:
      if (header.bytes > kAnnouncedBytes) return cat("an eager transfer of ", header.bytes, " B");
      if (header.position != 0) return cat("an eager transfer at byte ", header.position);
      return "";
    case Kind::heartbeat:
      if (header.bytes != 0) return "a heartbeat with a payload";
      return "";
  }
  return cat("a frame of the unknown kind ", static_cast<int>(header.kind));
}

}  // namespace

HeaderBytes encode(const Header& header) {
  HeaderBytes bytes{};
  std::size_t at = 0;
  const auto put = [&](const auto& value) {
    std::memcpy(bytes.data() + at, &value, sizeof value);
    at += sizeof value;
  };
  put(kMagic);
  put(header.kind);
  put(header.lane);
  put(uint16_t{0});
  put(header.epoch);
  put(header.bytes);
  put(header.sequence);
  put(header.position);
  return bytes;
}

std::string decode(std::span<const std::byte, kHeaderBytes> bytes, uint32_t epoch, Header& header) {
  Reader reader(bytes);
  const auto magic = reader.get<uint32_t>();
  header.kind = reader.get<Kind>();
  header.lane = reader.get<Lane>();
  const auto reserved = reader.get<uint16_t>();
  header.epoch = reader.get<uint32_t>();
  header.bytes = reader.get<uint32_t>();
  header.sequence = reader.get<uint64_t>();
  header.position = reader.get<uint64_t>();
  if (magic != kMagic || reserved != 0) return "bytes that are no frame";
  if (header.epoch != epoch) return cat("a frame of epoch ", header.epoch, ", not ", epoch);
  return check(header);
}

}  // namespace rdmacoll::tcp
