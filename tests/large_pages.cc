// Preloaded into a process: its kernel seems to have pages of 64 KiB, as many kernels of 64-bit ARM
// have. Mappings begin at such a page, and calls about parts of one fail.
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <cstdint>
#include <cstring>

namespace {

constexpr std::size_t kPage = 64 << 10, kRealPage = 4096, kRealPages = kPage / kRealPage;

std::atomic<int> pagemap{-1};

bool is_odd(const void* address) { return reinterpret_cast<uintptr_t>(address) % kPage != 0; }
std::size_t whole_pages(std::size_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }
bool refused(bool is_wrong) {
  if (is_wrong) errno = EINVAL;
  return is_wrong;
}

void* map(void* at, std::size_t bytes, int rights, int flags, int fd, off_t offset) {
  return reinterpret_cast<void*>(syscall(SYS_mmap, at, bytes, rights, flags, fd, offset));
}

// A page of 64 KiB is a private copy if a part of it is one.
uint64_t joined(const uint64_t* entries) {
  constexpr uint64_t kOfFile = uint64_t{1} << 61, kThere = uint64_t{3} << 62;
  const auto is_copy = [](uint64_t entry) {
    return (entry & kThere) != 0 && (entry & kOfFile) == 0;
  };
  const uint64_t* const end = entries + kRealPages;
  const uint64_t* const copy = std::find_if(entries, end, is_copy);
  return copy == end ? *entries : *copy;
}

ssize_t read_pagemap(int fd, uint64_t* to, std::size_t bytes, off_t at) {
  std::array<uint64_t, kRealPages> entries;
  std::size_t count = 0;
  for (; (count + 1) * sizeof *to <= bytes; ++count) {
    const auto first = static_cast<off_t>((at / sizeof *to + count) * sizeof entries);
    if (syscall(SYS_pread64, fd, entries.data(), sizeof entries, first) != sizeof entries) break;
    to[count] = joined(entries.data());
  }
  return static_cast<ssize_t>(count * sizeof *to);
}

int noted(const char* path, int fd) {
  if (std::strcmp(path, "/proc/self/pagemap") == 0) pagemap = fd;
  return fd;
}

}  // namespace

extern "C" {

long sysconf(int name) noexcept {
  static const auto real = reinterpret_cast<long (*)(int)>(dlsym(RTLD_NEXT, "sysconf"));
  return name == _SC_PAGESIZE ? static_cast<long>(kPage) : real(name);
}

void* mmap(void* at, std::size_t bytes, int rights, int flags, int fd, off_t offset) noexcept {
  const bool is_fixed = (flags & MAP_FIXED) != 0;
  if (refused(offset % kPage != 0 || (is_fixed && is_odd(at)))) return MAP_FAILED;
  if (is_fixed) return map(at, bytes, rights, flags, fd, offset);
  const std::size_t whole = whole_pages(bytes);
  void* const room =
      map(nullptr, whole + kPage, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (room == MAP_FAILED) return MAP_FAILED;
  auto* const begin = static_cast<char*>(room);
  const std::size_t before =
      whole_pages(reinterpret_cast<uintptr_t>(begin)) - reinterpret_cast<uintptr_t>(begin);
  if (before > 0) syscall(SYS_munmap, begin, before);
  if (before < kPage) syscall(SYS_munmap, begin + before + whole, kPage - before);
  void* const found = map(begin + before, bytes, rights, flags | MAP_FIXED, fd, offset);
  if (found == MAP_FAILED) syscall(SYS_munmap, begin + before, whole);
  return found;
}
void* mmap64(void* at, std::size_t bytes, int rights, int flags, int fd, off_t offset) noexcept {
  return mmap(at, bytes, rights, flags, fd, offset);
}

int munmap(void* at, std::size_t bytes) noexcept {
  return refused(is_odd(at)) ? -1 : static_cast<int>(syscall(SYS_munmap, at, whole_pages(bytes)));
}
int mprotect(void* at, std::size_t bytes, int rights) noexcept {
  if (refused(is_odd(at))) return -1;
  return static_cast<int>(syscall(SYS_mprotect, at, whole_pages(bytes), rights));
}
int madvise(void* at, std::size_t bytes, int advice) noexcept {
  if (refused(is_odd(at))) return -1;
  return static_cast<int>(syscall(SYS_madvise, at, whole_pages(bytes), advice));
}

int open(const char* path, int flags, ...) {
  va_list rest;
  va_start(rest, flags);
  const auto mode = static_cast<mode_t>(va_arg(rest, unsigned));
  va_end(rest);
  return noted(path, static_cast<int>(syscall(SYS_openat, AT_FDCWD, path, flags, mode)));
}
int open64(const char* path, int flags, ...) {
  va_list rest;
  va_start(rest, flags);
  const auto mode = static_cast<mode_t>(va_arg(rest, unsigned));
  va_end(rest);
  return open(path, flags, mode);
}
int __open_2(const char* path, int flags) { return open(path, flags, 0); }
int __open64_2(const char* path, int flags) { return open(path, flags, 0); }

ssize_t pread(int fd, void* to, std::size_t bytes, off_t at) {
  if (fd == pagemap) return read_pagemap(fd, static_cast<uint64_t*>(to), bytes, at);
  return syscall(SYS_pread64, fd, to, bytes, at);
}
ssize_t pread64(int fd, void* to, std::size_t bytes, off_t at) { return pread(fd, to, bytes, at); }
ssize_t __pread_chk(int fd, void* to, std::size_t bytes, off_t at, std::size_t) {
  return pread(fd, to, bytes, at);
}
ssize_t __pread64_chk(int fd, void* to, std::size_t bytes, off_t at, std::size_t) {
  return pread(fd, to, bytes, at);
}
}
