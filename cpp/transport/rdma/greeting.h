// The greeting of two ranks. Over the authenticated socket each rank sends the addresses of its
// queue pairs and its abilities. It then connects them, and confirms it. Later the socket carries
// heartbeats, and its end is the peer's end.
#pragma once

#include <string>
#include <vector>

#include "base/fd.h"
#include "base/status.h"
#include "transport/rdma/slabs.h"
#include "transport/rdma/verbs.h"

namespace rdmacoll::rdma {

struct GreetingEnd {
  LinkLayer link = LinkLayer::unknown;
  End end;

  std::string text() const;  // "LID 7", "GID ::ffff:10.9.0.1"
};

struct Greeting {
  uint32_t epoch = 0;
  int32_t rank = -1;
  uint32_t eager_bytes = 0;
  uint32_t chunk_bytes = 0;
  uint32_t receives = 0;  // posted at each queue pair
  std::vector<GreetingEnd> rails;
};

// All greetings have one size, whatever the number of rails, so the reader knows the length.
std::vector<std::byte> encode(const Greeting& greeting);
std::size_t greeting_bytes();
// Returns "" or the error.
std::string decode(std::span<const std::byte> bytes, Greeting& greeting);

// A socket that never blocks. It carries whole greetings first, then words of one byte. After the
// last word, `failed`, follows the reason as text.
class GreetingSocket {
 public:
  enum class Word : uint8_t { ready = 1, alive = 2, failed = 3 };

  void open(Fd socket) { socket_ = std::move(socket); }
  int fd() const { return socket_.get(); }
  void say(std::span<const std::byte> bytes) {
    out_.insert(out_.end(), bytes.begin(), bytes.end());
  }
  void say(Word word) { out_.push_back(static_cast<std::byte>(word)); }

  // Writes and reads as much as possible. `heard`: something came. A Status that is not ok says why
  // the peer is gone. Bytes that came before can still be taken.
  Status turn(bool& heard);
  bool is_flushed() const { return out_.empty(); }
  // Takes the next `bytes` bytes once they are there.
  bool take(std::size_t bytes, std::vector<std::byte>& into);
  // Takes the next word once it is there. Does not take the last word, `failed`.
  bool take_word(Word& word);
  // Tells the peer why this end gives up, as far as the system takes the text at once.
  void send_last(const std::string& why);
  // The peer's reason for giving up, or "".
  std::string last_message() const;
  void close();

 private:
  Fd socket_;
  std::vector<std::byte> out_;
  std::vector<std::byte> in_;
};

}  // namespace rdmacoll::rdma
