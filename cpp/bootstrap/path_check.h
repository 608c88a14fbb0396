// Checks that a new TCP connection carries frames of the interface's size. A path with a smaller
// MTU passes the small messages of a start, and silently loses the first large one.
//
//   each side -> the other   length (u32), then so many zeros: one segment of the connection
//   each side -> the other   one byte, when the other side's segment has arrived
//
// The check follows the proofs, so only ranks of the job send it. It reads no byte beyond itself.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"

namespace rdmacoll {

// The time from the segment to its answer, retransmissions included.
inline constexpr Nanoseconds kPathTimeout = 5 * kSecond;

class PathCheck {
 public:
  // Starts the check. Only TCP has segments: on other sockets neither side checks anything.
  void begin(int socket, Nanoseconds now);

  // Advances as far as the (non-blocking) socket allows. An error ends the connection.
  Status advance(int socket, Nanoseconds now);
  bool done() const { return is_answered_ && !output_left() && is_answer_sent_; }
  Nanoseconds deadline() const { return done() ? kNever : deadline_; }
  // The segment does not reach the other host, although smaller ones do.
  bool has_found_fault() const { return has_found_fault_; }

 private:
  std::size_t output_left() const { return output_.size() - written_; }
  Status write(int socket);
  Status read(int socket);
  Status take();
  bool is_held_up(int socket) const;

  Nanoseconds deadline_ = kNever;
  uint32_t segment_bytes_ = 0;
  uint64_t acked_before_ = 0;  // bytes of this side that the other host had at the beginning
  std::vector<std::byte> output_;
  std::size_t written_ = 0;
  std::vector<std::byte> input_{sizeof(uint32_t)};  // exactly as long as the expected input
  std::size_t filled_ = 0;
  enum class Expected : uint8_t { length, segment, answer } expected_ = Expected::length;
  bool is_answer_sent_ = true;
  bool is_answered_ = true;
  bool has_found_fault_ = false;
};

}  // namespace rdmacoll
