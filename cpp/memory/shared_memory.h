// Shared memory behind descriptors. It has no name, so nobody can guess it, and nothing is left
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

// Whether memfds exist. Kernels before 3.17 lack them, and some sandboxes forbid them. The memory
// is then a file in /dev/shm that loses its name at once. It cannot be sealed: the job's secret
// alone protects it from a holder that shrinks it.
bool has_memfds();

// Creates zeroed memory of exactly `bytes` bytes. It is sealed, so that no holder can shrink it
// while others use it. Without memfds, /dev/shm needs the room.
Status create_shared(const char* name, std::size_t bytes, Fd& fd);

// Checks memory that a peer passed. It must be sealed against shrinking, if seals exist, and have
// at least `bytes` bytes. Otherwise a read of the mapping could kill this process with SIGBUS.
Status check_shared(int fd, std::size_t bytes);

// Maps the first `bytes` bytes for reading and writing.
Status map_shared(int fd, std::size_t bytes, Mapping& mapping);

// Maps the range [offset, offset + bytes) twice in a row, so that a record that wraps is
// contiguous.
Status map_ring(int fd, std::size_t offset, std::size_t bytes, Mapping& mapping);

}  // namespace rdmacoll
