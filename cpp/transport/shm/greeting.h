// The greeting of two ranks of one node, over the authenticated socket. Each rank sends a
// Hello with its descriptors and maps the memory that it received. Then it tries to read the
// other's memory, and sends the result. No call blocks.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/fd.h"
#include "base/status.h"

namespace rdmacoll::shm {

struct Hello {
  uint32_t epoch = 0;
  int32_t rank = -1;
  int64_t pid = 0;
  uint64_t pool_base = 0;
  uint64_t pool_bytes = 0;
  uint64_t probe_address = 0;
  uint64_t probe_value = 0;
};

// Descriptors, in the order in which they are passed.
enum class Passed : std::size_t { bell_event, bell_page, pool, channel };
// The dialer passes all four. The acceptor passes no channel.
inline constexpr std::size_t kPassedMax = 4;
// Sent after the greeting by a rank that has ended and still has memory of its peer open.
inline constexpr std::byte kEnded{1};

// A message of known size in each direction. Its descriptors travel with the first byte.
class SocketMessage {
 public:
  void prepare(std::span<const std::byte> bytes, std::span<const int> descriptors);
  void expect(std::size_t bytes, std::size_t descriptors);

  // Status::busy(): not finished, call again.
  Status send(int socket);
  Status receive(int socket);

  std::span<const std::byte> received() const { return in_; }
  Fd take(Passed which) { return std::move(passed_[static_cast<std::size_t>(which)]); }

 private:
  std::vector<std::byte> out_;
  std::size_t out_done_ = 0;
  std::array<int, kPassedMax> descriptors_{};
  std::size_t descriptors_count_ = 0;

  std::vector<std::byte> in_;
  std::size_t in_done_ = 0;
  std::array<Fd, kPassedMax> passed_;
  std::size_t passed_count_ = 0;
  std::size_t passed_expected_ = 0;
};

std::vector<std::byte> encode(const Hello& hello);
Status decode(std::span<const std::byte> bytes, Hello& hello);

// The result of one side's attempt to read the other's memory.
enum class Verdict : uint8_t { can_read = 1, cannot_read = 2 };
std::vector<std::byte> encode(Verdict verdict);
Status decode(std::span<const std::byte> bytes, Verdict& verdict);

}  // namespace rdmacoll::shm
