// The memory that the engine owns: one arena, backed by a sealed memfd, that ranks of the same node
// map and RDMA devices register in slabs. Sparse: only what is touched costs
// memory.
#pragma once

#include <cstddef>
#include <memory>
#include <string_view>

#include "base/fd.h"
#include "base/status.h"

namespace rdmacoll {

class MemoryPool {
 public:
  // `bytes`: TF_RDMA_BUF_SIZE. Nothing is touched yet.
  static Status create(std::size_t bytes, std::unique_ptr<MemoryPool>& pool);
  virtual ~MemoryPool() = default;

  // Page-aligned memory from 4 KiB on, 64-byte aligned below; null when the pool is exhausted.
  // allocate and free may be called from any thread. Freed pages are kept for the next allocation,
  // up to a quarter of the pool: to fault them in again costs more than to use them.
  virtual std::byte* allocate(std::size_t bytes) = 0;
  // The same for memory that callers keep for as long as they like: at most half of the pool, since
  // the engine needs the rest itself.
  virtual std::byte* lend(std::size_t bytes) = 0;
  virtual void free(std::byte* memory) = 0;
  // Now rather than page by page when it is used. Memory of simulations is none.
  virtual void touch(std::byte*, std::size_t) {}
  // From now on freed pages are never given back to the system: a device has them registered, and
  // would go on with pages that are no longer behind these addresses.
  virtual void keep_pages() = 0;

  // To its first `bytes`, before anything is allocated.
  virtual void shrink(std::size_t bytes) = 0;

  virtual bool contains(const void* memory, std::size_t bytes) const = 0;
  virtual std::byte* base() const = 0;
  virtual std::size_t size() const = 0;
  virtual std::size_t used() const = 0;
  virtual int fd() const = 0;
  // The same memory, as in private_view.h. mapping() keeps both in this process, beyond the life of
  // the pool.
  virtual std::byte* view() const = 0;
  virtual std::shared_ptr<const void> mapping() const = 0;
};

// `bytes` could not be had. `use`: " to copy through"; `cure` is a sentence.
Status pool_exhausted(const MemoryPool& pool, std::size_t bytes, std::string_view use = "",
                      std::string_view cure = "Raise TF_RDMA_BUF_SIZE.");

}  // namespace rdmacoll
