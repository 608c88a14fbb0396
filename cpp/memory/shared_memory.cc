#include "memory/shared_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <string>

#include "base/kernel_calls.h"
#include "base/system_error.h"
#include "base/text.h"

namespace rdmacoll {
namespace {

// From fcntl.h; old systems lack them there.
constexpr int kAddSeals = 1033;
constexpr int kGetSeals = 1034;
constexpr int kSealSeal = 1;
constexpr int kSealShrink = 2;
constexpr int kSealGrow = 4;

Status create_nameless(std::size_t bytes, Fd& fd) {
  std::string path = cat("/dev/shm/rdmacoll-", std::string(6, 'X'));  // filled in by mkostemp
  fd = Fd(::mkostemp(path.data(), O_CLOEXEC));
  if (!fd) return system_error("without memfd_create, a file in /dev/shm", errno);
  ::unlink(path.c_str());
  // If a touched page finds no room, the kernel kills the process with SIGBUS. So check the room
  // first.
  struct statvfs room {};
  if (::fstatvfs(fd.get(), &room) != 0) return system_error("fstatvfs of /dev/shm", errno);
  const std::size_t free = room.f_bavail * room.f_frsize;
  if (free < bytes) {
    return {Code::failed, cat("without memfd_create memory is shared in /dev/shm, where ",
                              bytes_text(free), " are free and ", bytes_text(bytes), " needed")};
  }
  return {};
}

}  // namespace

bool has_memfds() {
  static const bool has = [] {
    const Fd file(create_memfd("rdmacoll", kMemfdCloexec | kMemfdAllowSealing));
    return file || (errno != ENOSYS && errno != EPERM);
  }();
  return has;
}

Mapping::~Mapping() {
  if (data_ != nullptr) ::munmap(data_, bytes_);
}

Status create_shared(const char* name, std::size_t bytes, Fd& fd) {
  Fd file;
  if (has_memfds()) {
    file = Fd(create_memfd(name, kMemfdCloexec | kMemfdAllowSealing));
    if (!file) return system_error("memfd_create", errno);
  } else {
    RC_RETURN_IF_ERROR(create_nameless(bytes, file));
  }
  if (::ftruncate(file.get(), static_cast<off_t>(bytes)) != 0) {
    return system_error(cat("ftruncate to ", bytes_text(bytes)), errno);
  }
  constexpr int kSeals = kSealShrink | kSealGrow | kSealSeal;
  if (has_memfds() && ::fcntl(file.get(), kAddSeals, kSeals) != 0) {
    return system_error("sealing a memfd", errno);
  }
  fd = std::move(file);
  return {};
}

Status check_shared(int fd, std::size_t bytes) {
  const int seals = ::fcntl(fd, kGetSeals);
  if (has_memfds() && (seals < 0 || (seals & kSealShrink) == 0)) {
    return Status(Code::failed, "passed memory that is not sealed against shrinking");
  }
  struct stat stat {};
  if (::fstat(fd, &stat) != 0) return system_error("fstat", errno);
  if (stat.st_size < 0 || static_cast<std::size_t>(stat.st_size) < bytes) {
    return Status(Code::failed, cat("passed memory of ", stat.st_size, " bytes, not of ", bytes));
  }
  return {};
}

Status map_shared(int fd, std::size_t bytes, Mapping& mapping) {
  void* data = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (data == MAP_FAILED) return system_error(cat("mmap of ", bytes_text(bytes)), errno);
  mapping = Mapping(static_cast<std::byte*>(data), bytes);
  return {};
}

Status map_ring(int fd, std::size_t offset, std::size_t bytes, Mapping& mapping) {
  void* reserved =
      ::mmap(nullptr, 2 * bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (reserved == MAP_FAILED) return system_error("mmap of a ring", errno);
  Mapping both(static_cast<std::byte*>(reserved), 2 * bytes);
  for (std::size_t copy = 0; copy < 2; ++copy) {
    void* data = ::mmap(both.data() + copy * bytes, bytes, PROT_READ | PROT_WRITE,
                        MAP_SHARED | MAP_FIXED, fd, static_cast<off_t>(offset));
    if (data == MAP_FAILED) return system_error("mmap of a ring", errno);
  }
  mapping = std::move(both);
  return {};
}

}  // namespace rdmacoll
