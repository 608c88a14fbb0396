// The memory of the emulated GPUs. A GPU's addresses are reserved without access, so the CPU dies
// on them as on a card. The bytes lie in a memfd, which is mapped a second time. Another process
// opens the memfd for CUDA IPC.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include "cuda/driver_api.h"
#include "cuda_sim/ipc.h"

namespace rdmacoll::cuda_sim {

using cuda::Address;

inline Address address_of(const void* memory) { return reinterpret_cast<Address>(memory); }

// A GPU's addresses, with the bytes behind them.
struct AddressSpace {
  Address base = 0;
  std::size_t reserved = 0;    // bytes of addresses
  std::size_t bytes = 0;       // bytes of memory
  int fd = -1;                 // holds the memory at the same offsets, then the table of exports
  std::byte* store = nullptr;  // the second mapping
};

struct Allocation {
  Address address = 0;
  std::size_t bytes = 0;
  std::size_t taken = 0;  // bytes, rounded up
  int gpu = 0;            // the context's
  int owner = 0;          // the GPU whose memory it is, if it is visible here
  uint64_t id = 0;
  std::byte* store = nullptr;
  bool is_managed = false;
  bool is_pooled = false;    // from cuMemAllocAsync
  bool is_imported = false;  // opened by CUDA IPC
  bool has_sync_memops = false;
  int export_slot = -1;
  const ExportSlot* exported = nullptr;  // if this is an import
  uint64_t exported_serial = 0;
  int exporter = 0;                // its process
  unsigned long long created = 0;  // handle of mapped memory of cuMemCreate
  int fd = -1;                     // its file
  bool is_gpudirect_capable = true;

  bool holds(Address first, std::size_t count) const {
    return first >= address && count <= bytes && first - address <= bytes - count;
  }
};

// Memory of cuMemCreate, which is not yet mapped at an address, or is.
struct CreatedMemory {
  int gpu = 0;
  std::size_t bytes = 0;
  int fd = -1;
  std::byte* store = nullptr;
  bool is_gpudirect_capable = false;
  bool is_mapped = false;
  bool is_released = false;
};

// Page-locked memory of the host.
struct Pinned {
  Address address = 0;
  std::size_t bytes = 0;
  int gpu = 0;
  unsigned flags = 0;
  uint64_t id = 0;
  bool is_registered = false;  // by cuMemHostRegister

  bool holds(Address first, std::size_t count) const {
    return first >= address && count <= bytes && first - address <= bytes - count;
  }
};

class Memory {
 public:
  // Reserves addresses for a GPU of `bytes`. Call once for each GPU, in order.
  void add_gpu(std::size_t bytes);

  // Returns null if the GPU has not so much memory left.
  Allocation* allocate(int gpu, std::size_t bytes, bool is_pooled);
  Allocation* allocate_managed(int gpu, std::size_t bytes);
  // Gives addresses of `gpu` to a peer's memory that is mapped at `store`.
  Allocation* import(int gpu, std::byte* store, std::size_t bytes);
  void release(Address address);

  // Addresses for cuMemMap.
  Address reserve(std::size_t bytes);
  bool unreserve(Address address, std::size_t bytes);
  bool is_reserved(Address address, std::size_t bytes) const;
  void map(const Allocation& allocation) { insert(allocation); }

  // Returns the allocation that holds the address, or null.
  Allocation* find(Address address);
  // Returns an allocation in these pages of the host. Null if the pages are not in one piece of the
  // driver's memory: a large allocation, or a chunk that small ones share.
  Allocation* find_block(Address address, std::size_t bytes);
  Allocation* find_base(Address address);
  Pinned* find_pinned(Address address);
  // Returns null if the range overlaps other pinned memory.
  Pinned* pin(Pinned pinned);
  void unpin(Address address) { pinned_.erase(address); }

  // Returns where the CPU finds the bytes of device or pinned memory, or null if they are not all
  // in one piece of memory. `gpu` gets the owner, or -1 for the host's.
  std::byte* translate(Address address, std::size_t bytes, int& gpu);
  // Says whether the CPU must not touch the address.
  bool is_device_address(Address address) const;

  // Releases what a GPU's context holds.
  void release_context(int gpu);

  std::size_t used(int gpu) const { return used_.at(gpu); }
  AddressSpace& space(int gpu) { return spaces_.at(gpu); }
  std::size_t allocations() const { return allocations_.size(); }
  std::size_t pinned() const { return pinned_.size(); }
  std::size_t imported() const;
  std::size_t bytes() const;

 private:
  // Returns 0 if no gap between `begin` and `end` is wide enough.
  Address find_gap(Address begin, Address end, std::size_t taken, std::size_t alignment) const;
  Allocation* insert(Allocation allocation);

  std::vector<AddressSpace> spaces_;
  std::vector<std::size_t> used_;
  std::map<Address, Allocation> allocations_;
  std::map<Address, Pinned> pinned_;
  std::map<Address, std::size_t> reservations_;
  uint64_t next_id_ = 1;
};

}  // namespace rdmacoll::cuda_sim
