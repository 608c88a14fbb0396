#include "memory/peer_readable.h"

#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>

namespace rdmacoll {
namespace {

constexpr std::size_t kBytesAtOnce = 256;  // the kernel allows 1,024 pieces in one call

class Trial {
 public:
  void add(uintptr_t address) {
    remote_[count_++] = {reinterpret_cast<void*>(address), 1};
    if (count_ == kBytesAtOnce) run();
  }
  bool end() {
    run();
    return can_read_;
  }

 private:
  void run() {
    if (count_ == 0) return;
    const iovec local{bytes_.data(), count_};
    ssize_t got = 0;
    do {
      got = ::process_vm_readv(::getpid(), &local, 1, remote_.data(), count_, 0);
    } while (got < 0 && errno == EINTR);
    can_read_ = can_read_ && got == static_cast<ssize_t>(count_);
    count_ = 0;
  }

  std::array<iovec, kBytesAtOnce> remote_;
  std::array<std::byte, kBytesAtOnce> bytes_;
  std::size_t count_ = 0;
  bool can_read_ = true;
};

}  // namespace

bool are_peer_readable(std::span<const Piece> pieces) {
  Trial trial;
  for (const Piece& piece : pieces) {
    if (piece.bytes == 0) continue;
    // Numbers, since the memory of simulated ranks may begin at null.
    const auto first = reinterpret_cast<uintptr_t>(piece.data);
    trial.add(first);
    if (piece.bytes > 1) trial.add(first + piece.bytes - 1);
  }
  return trial.end();
}

}  // namespace rdmacoll
