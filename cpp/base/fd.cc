#include "base/fd.h"

#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>

#include "base/status.h"
#include "base/text.h"

namespace rdmacoll {
namespace {

// Descriptor numbers above this cannot be tracked. It is far above all usual limits. A forked child
// can walk a fixed array without a lock or an allocation.
constexpr std::size_t kDescriptorsMax = 65'536;

// One flag per descriptor number: the process-wide list of fd.h. Zero-initialised, without
// constructor and destructor, so that it is usable before main and while the process exits.
constinit std::array<std::atomic<uint8_t>, kDescriptorsMax> owned{};
static_assert(std::atomic<uint8_t>::is_always_lock_free, "read in a forked child");

}  // namespace

Fd::Fd(int fd) : fd_(fd) {
  if (fd < 0 || static_cast<std::size_t>(fd) >= kDescriptorsMax) return;
  const uint8_t before = owned[fd].exchange(1, std::memory_order_relaxed);
  RC_ASSERT(before == 0, cat("descriptor ", fd, " has two owners"));
}

void Fd::reset() {
  const int fd = std::exchange(fd_, -1);
  if (fd < 0) return;
  if (static_cast<std::size_t>(fd) < kDescriptorsMax) {
    // In a forked child the list is empty, and the number may be another file by now: leave it
    // open.
    if (owned[fd].exchange(0, std::memory_order_relaxed) == 0) return;
  }
  ::close(fd);  // never repeated on EINTR: Linux has released the number by then
}

void Fd::release() {
  const int fd = std::exchange(fd_, -1);
  if (fd >= 0 && static_cast<std::size_t>(fd) < kDescriptorsMax) {
    owned[fd].store(0, std::memory_order_relaxed);
  }
}

bool write_all(const Fd& file, const void* data, std::size_t bytes) {
  const auto* const from = static_cast<const std::byte*>(data);
  for (std::size_t done = 0; done < bytes;) {
    const ssize_t written = ::write(file.get(), from + done, bytes - done);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return false;
    done += static_cast<std::size_t>(written);
  }
  return true;
}

void close_all_descriptors_in_child() {
  const int saved_errno = errno;
  for (std::size_t fd = 0; fd < kDescriptorsMax; ++fd) {
    if (owned[fd].exchange(0, std::memory_order_relaxed) != 0) ::close(static_cast<int>(fd));
  }
  errno = saved_errno;
}

int open_descriptors() {
  int count = 0;
  for (const auto& flag : owned) count += flag.load(std::memory_order_relaxed);
  return count;
}

}  // namespace rdmacoll
