// Shared memory behind descriptors: it has no name, so nobody can guess it and nothing is left
// behind when a process dies.
#pragma once

#include <cstddef>
#include <utility>

#include "base/fd.h"
#include "base/status.h"

namespace rdmacoll {

// Owned address space.
class Mapping {
 public:
  Mapping() = default;
  Mapping(std::byte* data, std::size_t bytes) : data_(data), bytes_(bytes) {}
  Mapping(Mapping&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  Mapping& operator=(Mapping&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~Mapping();

  std::byte* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }

 private:
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
};

// Kernels before 3.17 have no memfds, and some sandboxes forbid them: then it is a file in /dev/shm
// that loses its name at once. It has no seals: that no holder shrinks it is up to the job's
// secret.
bool has_memfds();

// Zeroed memory of exactly this size: sealed, so that no holder can shrink it under another's feet.
// Without memfds /dev/shm has to have the room.
Status create_shared(const char* name, std::size_t bytes, Fd& fd);

// What a peer passed must be sealed against shrinking, where there are seals, and be at least as
// large as it says; otherwise a read of the mapping could kill us with SIGBUS.
Status check_shared(int fd, std::size_t bytes);

Status map_shared(int fd, std::size_t bytes, Mapping& mapping);

// The range [offset, offset + bytes) twice in a row, so that a record that wraps is contiguous.
Status map_ring(int fd, std::size_t offset, std::size_t bytes, Mapping& mapping);

}  // namespace rdmacoll
