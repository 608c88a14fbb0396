// A record of a ring: a header of 40 bytes and a payload. The peer can change the ring's memory at
// any moment, so a reader copies first and checks the copy.
#pragma once

#include <cstddef>
#include <cstdint>

#include "memory/page.h"
#include "transport/queues.h"
#include "transport/transport.h"

namespace rdmacoll::shm {

// A typical record (a header and one piece, or the data of a small sum) fills one cache line. No
// two records share a line.
inline constexpr std::size_t kRecordAlign = 64;
// Small, so that the rings of all peers of a rank stay in its cache. The largest record is a
// quarter of the ring, so that several fit.
inline constexpr std::size_t kRingBytes = 64 * 1024;
inline constexpr std::size_t kRecordBytesMax = kRingBytes / 4;
// The rings of a pair begin here in their channel, at a page of every kernel.
inline constexpr std::size_t kRingsBegin = kPageBytesMax;
static_assert(kRingBytes % kPageBytesMax == 0, "a ring is mapped twice, one after the other");

enum class RecordKind : uint8_t {
  control = 1,  // a message, or a fragment of one
  publish,      // the peer may read these pieces
  release,      // the peer has read them
  grant,        // a receive is posted (only between ranks that need staging)
  heartbeat,
  data,        // a whole small transfer: no grant, no release
  offer,       // a small transfer that waits for its grant, since the eager budget is used up
  gpu_offer,   // payload: a GpuSlab
  gpu_answer,  // `extra`: the slab's begin; `count`: a GpuAnswer; payload: why not
};

// Transfers and views are matched in separate number spaces.
enum class Traffic : uint8_t { transfer = 0, view = 1 };

struct RecordHeader {
  uint64_t stamp = 0;  // written last: it marks the record as present. See ring.h
  uint32_t bytes = 0;  // bytes of the payload
  RecordKind kind{};
  Traffic traffic{};
  Lane lane = 0;
  uint8_t reserved = 0;
  uint32_t epoch = 0;
  uint32_t count = 0;     // publish: pieces; control: bytes of the whole message
  uint64_t sequence = 0;  // control: number of the message
  uint64_t extra = 0;  // control: offset of the fragment; publish: address of a list of pieces if
                       // it is too long for a record, else 0
};
static_assert(sizeof(RecordHeader) == 40);

// Bytes of the publisher. In its pool, `address` is the offset from the pool's base.
struct PieceRecord {
  uint64_t address = 0;
  uint64_t bytes = 0;  // kInPool is or'ed in
};
inline constexpr uint64_t kInPool = uint64_t{1} << 63;
// Likewise for memory of a GPU that was offered. `address` is the publisher's.
inline constexpr uint64_t kOnGpu = uint64_t{1} << 62;

enum class GpuAnswer : uint32_t { yes = 1, no, later };
inline constexpr std::size_t kRefusalBytesMax = 1024;
inline constexpr std::size_t kGpuSlabsMax = 1024;  // maximum of one peer

inline constexpr std::size_t kPiecesMax = 128;
static_assert(sizeof(RecordHeader) + kPiecesMax * sizeof(PieceRecord) <= kRecordBytesMax);
// Transfers up to this size go as data. Two copies take less time than a view and its release. This
// helps most for the smallest sums
// (docs/measurements/2026-11-28-what-mechanisms-are-worth.md).
inline constexpr std::size_t kDataBytesMax = 4096;
static_assert(sizeof(RecordHeader) + kDataBytesMax <= kRecordBytesMax);
inline constexpr std::size_t kControlFragmentMax = kRecordBytesMax - sizeof(RecordHeader);
// A peer that exceeds these limits is broken. Sends and views have at most kTransfersMax each, and
// eager transfers are fewer.
inline constexpr std::size_t kListedPiecesMax = std::size_t{1} << 20;
inline constexpr std::size_t kUnclaimedMax = 4 * kTransfersMax;

// The limit of one transfer's byte count: far above real transfers, and far from overflow.
inline constexpr std::size_t kTransferBytesMax = std::size_t{1} << 30;
// The limit of one transfer that must pass through the sender's pool.
inline constexpr std::size_t kStagedBytesMax = std::size_t{1} << 20;

}  // namespace rdmacoll::shm
