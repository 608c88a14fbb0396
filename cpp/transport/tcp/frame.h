// Frames of a TCP stream: a fixed header and `bytes` of payload. If a peer has several streams, all
// of them carry data and heartbeats. The other kinds use the first stream only.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "transport/eager_budget.h"
#include "transport/queues.h"
#include "transport/transport.h"

namespace rdmacoll::tcp {

enum class Kind : uint8_t {
  control = 1,    // payload: one message
  grant = 2,      // the receive (lane, sequence) is posted; `position` is its length in bytes
  data = 3,       // payload: bytes of the transfer (lane, sequence) from `position` on
  heartbeat = 4,  // has no content
  eager = 5,      // payload: the whole transfer (lane, sequence), sent before its grant
};

struct Header {
  Kind kind = Kind::heartbeat;
  Lane lane = 0;
  uint32_t epoch = 0;
  uint32_t bytes = 0;
  uint64_t sequence = 0;
  uint64_t position = 0;
};

inline constexpr std::size_t kHeaderBytes = 32;
inline constexpr uint32_t kMagic = 0x31435452;  // "RTC1"

// The most payload in one data frame. A control message waits for at most this much of our own
// data. Larger frames gain nothing: the copy of the bytes far outweighs a header and a system call.
inline constexpr std::size_t kFragmentBytes = 256 * 1024;

// Transfers up to this size are sent before their grant, which would cost a message's travel time.
// Larger transfers take as long with a grant, as measured.
inline constexpr std::size_t kEagerBytes = 64 * 1024;
// The same for a transfer whose receive its peer is about to post. The peer reads it into its
// place.
inline constexpr std::size_t kAnnouncedBytes = 256 * 1024;
static_assert(kEagerBytes <= kAnnouncedBytes && kAnnouncedBytes <= kFragmentBytes,
              "an eager transfer is one frame");
// Each eager transfer counts for this much more than its bytes, which limits their number.
inline constexpr std::size_t kEagerCost = 4 * 1024;
static_assert(kEagerBytesOfPeer / kEagerCost < kTransfersMax / 2, "receives find a place");

// The most bytes that one poll reads from or writes to one stream, before other streams have a
// turn.
inline constexpr std::size_t kReadBytesPerPoll = 1024 * 1024;
inline constexpr std::size_t kWriteBytesPerPoll = 1024 * 1024;

// No machine has memory for a longer transfer. Longer ones are refused before any arithmetic.
inline constexpr uint64_t kTransferBytesMax = uint64_t{1} << 40;

using HeaderBytes = std::array<std::byte, kHeaderBytes>;

HeaderBytes encode(const Header& header);

// Decodes a header and checks every field. Returns "" if it is well formed, else the error.
std::string decode(std::span<const std::byte, kHeaderBytes> bytes, uint32_t epoch, Header& header);

}  // namespace rdmacoll::tcp
