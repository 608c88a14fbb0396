#include "transport/rdma/message.h"

#include <cstring>
#include <tuple>

namespace rdmacoll::rdma {
namespace {

// Writes fixed fields into our own buffer. It avoids Writer's vector on the hot path.
class Filler {
 public:
  explicit Filler(std::byte* into) : into_(into) {}
  template <typename T>
  Filler& put(T value) {
    std::memcpy(into_, &value, sizeof value);
    into_ += sizeof value;
    return *this;
  }

 private:
  std::byte* into_;
};

}  // namespace

void encode(const MessageHeader& header, std::byte* into) {
  Filler filler(into);
  filler.put(header.magic).put(header.epoch).put(header.number).put(header.bytes);
  for (const uint16_t credits : header.credits) filler.put(credits);
  filler.put(header.claimed);
}

void encode(const RecordHeader& header, std::byte* into) {
  Filler(into)
      .put(header.kind)
      .put(header.lane)
      .put(uint16_t{0})
      .put(header.bytes)
      .put(header.sequence)
      .put(header.position);
}

void encode(const WriteTarget& target, std::byte* into) {
  Filler(into)
      .put(target.address)
      .put(target.key)
      .put(target.bytes)
      .put(target.immediate)
      .put(target.rail);
}

bool decode(std::span<const std::byte> bytes, uint32_t epoch, MessageHeader& header) {
  Reader reader(bytes);
  const auto take = [&](auto&... credits) {
    return reader.take_all(header.magic, header.epoch, header.number, header.bytes, credits...,
                           header.claimed);
  };
  return std::apply(take, header.credits) && header.magic == kMagic && header.epoch == epoch &&
         header.bytes == bytes.size();
}

bool decode(std::span<const std::byte> bytes, RecordHeader& header) {
  Reader reader(bytes);
  uint16_t reserved = 0;
  return reader.take_all(header.kind, header.lane, reserved, header.bytes, header.sequence,
                         header.position) &&
         reserved == 0 && header.kind >= RecordKind::control && header.kind <= RecordKind::offer &&
         header.bytes <= reader.left();
}

WriteTarget decode_target(Reader& reader) {
  WriteTarget target;
  target.address = reader.get<uint64_t>();
  target.key = reader.get<uint32_t>();
  target.bytes = reader.get<uint32_t>();
  target.immediate = reader.get<uint32_t>();
  target.rail = reader.get<uint32_t>();
  return target;
}

}  // namespace rdmacoll::rdma
