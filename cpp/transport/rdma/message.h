// What the receives of a queue pair take: messages, each a header and records. Small things share a
// message while the queue is busy (accumulation). docs/internals/rdma.md has the whole protocol.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/wire.h"
#include "transport/rdma/slabs.h"

namespace rdmacoll::rdma {

inline constexpr uint32_t kMagic = 0x32525452;  // "RTR2"

struct MessageHeader {
  uint32_t magic = kMagic;
  uint32_t epoch = 0;
  uint32_t number = 0;                        // counts the messages of this direction
  uint32_t bytes = 0;                         // with this header
  std::array<uint16_t, kRailsMax> credits{};  // receives that are posted again, by rail
  uint64_t claimed = 0;  // of the other direction's eager transfers, by receives: eager_budget.h
};
inline constexpr std::size_t kMessageHeaderBytes = 32;

enum class RecordKind : uint8_t {
  control = 1,  // payload: bytes of a message from `position` on; `sequence` is its length
  data = 2,     // payload: a whole small transfer (eager)
  grant = 3,    // payload: places for the transfer from `position` on. None: say when it is posted
  ready = 4,    // it is posted
  path = 5,     // the first one of a connection: this way is open. Payload: the sender's eager cut
  offer = 6,    // a small transfer of `position` bytes waits for its grant, an empty one
};

struct RecordHeader {
  RecordKind kind = RecordKind::path;
  Lane lane = 0;
  uint32_t bytes = 0;  // of the payload
  uint64_t sequence = 0;
  uint64_t position = 0;
};
inline constexpr std::size_t kRecordHeaderBytes = 24;

// Where a part of a transfer may be written, and the immediate that says that it was.
struct Place {
  uint64_t address = 0;
  uint32_t key = 0;
  uint32_t bytes = 0;
  uint32_t immediate = 0;
  uint32_t rail = 0;
};
inline constexpr std::size_t kPlaceBytes = 24;

void encode(const MessageHeader& header, std::byte* into);
void encode(const RecordHeader& header, std::byte* into);
void encode(const Place& place, std::byte* into);
// False when it is cut short, or not what a peer of this version and epoch sends.
bool decode(std::span<const std::byte> bytes, uint32_t epoch, MessageHeader& header);
bool decode(std::span<const std::byte> bytes, RecordHeader& header);
Place decode_place(Reader& reader);

}  // namespace rdmacoll::rdma
