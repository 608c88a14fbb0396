// What travels on a TCP stream: frames, each a fixed header and `bytes` of payload. Where a peer
// has several streams, data and heartbeats go on all of them, all else on the first one.
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
  grant = 2,      // the receive (lane, sequence) is posted; `position` is how long it is
  data = 3,       // payload: bytes of the transfer (lane, sequence) from `position` on
  heartbeat = 4,  // nothing but a sign of life
  eager = 5,      // payload: the whole transfer (lane, sequence), whose grant is still to come
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

// The most payload in one data frame: a control message waits behind at most this much of our own
// data, and the cost of a header and a system call is already lost in the copy of so many bytes.
inline constexpr std::size_t kFragmentBytes = 256 * 1024;

// A transfer up to here goes ahead of its grant, which costs the way of a message. (At 10 Gbit/s
// larger ones take as long with a grant.)
inline constexpr std::size_t kEagerBytes = 64 * 1024;
static_assert(kEagerBytes <= kFragmentBytes, "an eager transfer is one frame");
// Each counts for so much more than its bytes, so that there are not too many.
inline constexpr std::size_t kEagerCost = 4 * 1024;
static_assert(kEagerBytesOfPeer / kEagerCost < kTransfersMax / 2, "receives find a place");

// What one poll reads from one stream, and writes to it, before the others have their turn.
inline constexpr std::size_t kReadBytesPerPoll = 1024 * 1024;
inline constexpr std::size_t kWriteBytesPerPoll = 1024 * 1024;

// A length that nobody has memory for; larger ones are refused before arithmetic is done with them.
inline constexpr uint64_t kTransferBytesMax = uint64_t{1} << 40;

using HeaderBytes = std::array<std::byte, kHeaderBytes>;

HeaderBytes encode(const Header& header);

// Takes a header apart and checks every field. "" when it is well formed, else what is wrong.
std::string decode(std::span<const std::byte, kHeaderBytes> bytes, uint32_t epoch, Header& header);

}  // namespace rdmacoll::tcp
