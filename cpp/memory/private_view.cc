#include "memory/private_view.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>

#include "base/fd.h"
#include "base/system_error.h"
#include "base/text.h"
#include "memory/page.h"

namespace rdmacoll {
namespace {

// Bits of a page in /proc/self/pagemap: present, swapped, page of a file. A page that is present or
// swapped but not of the file is a private copy.
constexpr uint64_t kPresent = uint64_t{1} << 63;
constexpr uint64_t kSwapped = uint64_t{1} << 62;
constexpr uint64_t kOfFile = uint64_t{1} << 61;

// Whether some page has been copied. True if the kernel does not tell.
bool has_copies(const std::byte* begin, std::size_t bytes) {
  const Fd map(::open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC));
  if (!map) return true;
  std::array<uint64_t, 2048> pages;
  auto at =
      static_cast<off_t>(reinterpret_cast<uintptr_t>(begin) / page_bytes() * sizeof(uint64_t));
  for (std::size_t left = (bytes + page_bytes() - 1) / page_bytes(); left > 0;) {
    const std::size_t wanted = std::min(left, pages.size());
    const ssize_t got = ::pread(map.get(), pages.data(), wanted * sizeof(uint64_t), at);
    if (got <= 0) return true;
    const std::size_t count = static_cast<std::size_t>(got) / sizeof(uint64_t);
    for (std::size_t i = 0; i < count; ++i) {
      if ((pages[i] & (kPresent | kSwapped)) != 0 && (pages[i] & kOfFile) == 0) return true;
    }
    left -= count;
    at += got;
  }
  return false;
}

}  // namespace

Status map_pool(int fd, std::size_t bytes, PoolMapping& mapping) {
  RC_RETURN_IF_ERROR(map_shared(fd, bytes, mapping.shared));
  void* data = ::mmap(nullptr, bytes, PROT_READ, MAP_PRIVATE | MAP_NORESERVE, fd, 0);
  if (data == MAP_FAILED) return system_error(cat("mmap of ", bytes_text(bytes)), errno);
  mapping.view = Mapping(static_cast<std::byte*>(data), bytes);
  return {};
}

Status allow_writes(std::byte* begin, std::size_t bytes) {
  if (::mprotect(begin, bytes, PROT_READ | PROT_WRITE) == 0) return {};
  return system_error(cat("mprotect of ", bytes_text(bytes)), errno);
}

// Looking at all pages is cheaper than dropping them, since dropped pages must be mapped again.
void forget_writes(std::byte* begin, std::size_t bytes) {
  if (has_copies(begin, bytes)) ::madvise(begin, bytes, MADV_DONTNEED);
}

}  // namespace rdmacoll
