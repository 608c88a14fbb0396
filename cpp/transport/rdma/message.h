// Messages, which take the receives of a queue pair. Each has a header and records. Small records
// share a message while the queue is busy (accumulation). docs/internals/rdma.md has the whole
// protocol.
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
  uint32_t bytes = 0;                         // length of the message, including this header
  std::array<uint16_t, kRailsMax> credits{};  // receives that are posted again, by rail
  uint64_t claimed = 0;  // cost of the opposite direction's eager transfers that receives have
                         // claimed: eager_budget.h
};
inline constexpr std::size_t kMessageHeaderBytes = 32;

enum class RecordKind : uint8_t {
  control = 1,  // payload: bytes of a message from `position` on; `sequence` is its length
  data = 2,     // payload: a whole small transfer (eager)
  grant = 3,    // payload: targets for the transfer from `position` on; no target: asks for `ready`
  ready = 4,    // the send is posted
  path = 5,   // first record of a connection: this direction works; payload: the sender's eager cut
  offer = 6,  // a small transfer of `position` bytes waits for its (empty) grant
};

struct RecordHeader {
  RecordKind kind = RecordKind::path;
  Lane lane = 0;
  uint32_t bytes = 0;  // bytes of the payload
  uint64_t sequence = 0;
  uint64_t position = 0;
};
inline constexpr std::size_t kRecordHeaderBytes = 24;

// Memory for a part of a transfer, and the immediate that confirms its write.
struct WriteTarget {
  uint64_t address = 0;
  uint32_t key = 0;
  uint32_t bytes = 0;
  uint32_t immediate = 0;
  uint32_t rail = 0;
};
inline constexpr std::size_t kWriteTargetBytes = 24;

void encode(const MessageHeader& header, std::byte* into);
void encode(const RecordHeader& header, std::byte* into);
void encode(const WriteTarget& target, std::byte* into);
// Returns false if it is truncated, or does not match this version and epoch.
bool decode(std::span<const std::byte> bytes, uint32_t epoch, MessageHeader& header);
bool decode(std::span<const std::byte> bytes, RecordHeader& header);
WriteTarget decode_target(Reader& reader);

}  // namespace rdmacoll::rdma
