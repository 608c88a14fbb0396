// The engine's own memory: one arena in a sealed memfd. Ranks of the same node map it, and RDMA
// devices register it in slabs. It is sparse: only touched pages cost memory.
#pragma once

#include <cstddef>
#include <memory>
#include <string_view>

#include "base/fd.h"
#include "base/status.h"

namespace rdmacoll {

class MemoryPool {
 public:
  // `bytes`: TF_RDMA_BUF_SIZE. Touches no page yet.
  static Status create(std::size_t bytes, std::unique_ptr<MemoryPool>& pool);
  virtual ~MemoryPool() = default;

  // Memory is page-aligned from 4 KiB on, and 64-byte aligned below. Returns null when the pool is
  // exhausted. Any thread may call allocate and free. Freed pages are kept for the next allocation,
  // up to a quarter of the pool, since faulting them in again costs more than using them.
  virtual std::byte* allocate(std::size_t bytes) = 0;
  // Like allocate, for memory that callers keep as long as they like. Lends at most half of the
  // pool, since the engine needs the rest.
  virtual std::byte* lend(std::size_t bytes) = 0;
  virtual void free(std::byte* memory) = 0;
  // Touches the pages now, so that their first use does not fault. Simulated pools have no backing
  // memory.
  virtual void touch(std::byte*, std::size_t) {}
  // From now on freed pages are never returned to the system. A device has registered them, and
  // would otherwise go on with pages that are no longer at these addresses.
  virtual void keep_pages() = 0;

  // Shrinks the pool to its first `bytes`, before anything is allocated.
  virtual void shrink(std::size_t bytes) = 0;

  virtual bool contains(const void* memory, std::size_t bytes) const = 0;
  virtual std::byte* base() const = 0;
  virtual std::size_t size() const = 0;
  virtual std::size_t used() const = 0;
  virtual int fd() const = 0;
  // A private view of the same memory (private_view.h). mapping() keeps both mappings in this
  // process, even after the pool is gone.
  virtual std::byte* view() const = 0;
  virtual std::shared_ptr<const void> mapping() const = 0;
};

// The error for `bytes` that the pool does not have. `use`: " to copy through"; `cure` is a
// sentence.
Status pool_exhausted(const MemoryPool& pool, std::size_t bytes, std::string_view use = "",
                      std::string_view cure = "Raise TF_RDMA_BUF_SIZE.");

}  // namespace rdmacoll
