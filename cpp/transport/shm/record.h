// What stands in a ring: a header of 40 bytes and a payload. The ring is memory that the peer can
// change at any moment, so a reader copies first and checks the copy.
#pragma once

#include <cstddef>
#include <cstdint>

#include "transport/queues.h"
#include "transport/transport.h"

namespace rdmacoll::shm {

// A typical record (a header and one piece, or a small sum's data) fills one cache line, and a
// record never shares a line with another one.
inline constexpr std::size_t kRecordAlign = 64;
// Small, so that the rings of all peers of a rank stay in its cache; the largest record is a
// quarter, so that several fit.
inline constexpr std::size_t kRingBytes = 64 * 1024;
inline constexpr std::size_t kRecordBytesMax = kRingBytes / 4;

enum class RecordKind : uint8_t {
  control = 1,  // a message, or a fragment of one
  publish,      // the peer may read these pieces ...
  release,      // ... and has done so
  grant,        // a receive is posted (only between ranks that need staging)
  heartbeat,
  data,   // a whole small transfer: no grant, no release
  offer,  // a small transfer waits for its grant: there are too many whose receive is not posted
};

// Sends and publications are matched in spaces of their own.
enum class Traffic : uint8_t { transfer = 0, view = 1 };

struct RecordHeader {
  uint64_t stamp = 0;  // written last: the record is there. See ring.h
  uint32_t bytes = 0;  // of the payload
  RecordKind kind{};
  Traffic traffic{};
  Lane lane = 0;
  uint8_t reserved = 0;
  uint32_t epoch = 0;
  uint32_t count = 0;     // publish: pieces; control: bytes of the whole message
  uint64_t sequence = 0;  // control: number of the message
  uint64_t extra = 0;     // control: offset of the fragment; publish: address of a list of pieces
                          // that is too long for a record, else 0
};
static_assert(sizeof(RecordHeader) == 40);

// Bytes of the publisher: in its pool (address = offset from the pool's base), or anywhere.
struct PieceRecord {
  uint64_t address = 0;
  uint64_t bytes = 0;  // kInPool is or'ed in
};
inline constexpr uint64_t kInPool = uint64_t{1} << 63;

inline constexpr std::size_t kPiecesMax = 128;
static_assert(sizeof(RecordHeader) + kPiecesMax * sizeof(PieceRecord) <= kRecordBytesMax);
// Transfers up to here go as data: copied twice, which takes less than a view that is given back.
inline constexpr std::size_t kDataBytesMax = 4096;
static_assert(sizeof(RecordHeader) + kDataBytesMax <= kRecordBytesMax);
inline constexpr std::size_t kControlFragmentMax = kRecordBytesMax - sizeof(RecordHeader);
// More pieces than this in one transfer, or more things that nobody has asked for yet, are a broken
// peer's: of sends and views each have at most kTransfersMax, and eager transfers are fewer.
inline constexpr std::size_t kListedPiecesMax = std::size_t{1} << 20;
inline constexpr std::size_t kUnclaimedMax = 4 * kTransfersMax;

// One byte count for a whole transfer; far above any, and far from overflow.
inline constexpr std::size_t kTransferBytesMax = std::size_t{1} << 30;
// Bytes that must pass through the sender's pool go in steps of this size at most.
inline constexpr std::size_t kStagedBytesMax = std::size_t{1} << 20;

}  // namespace rdmacoll::shm
