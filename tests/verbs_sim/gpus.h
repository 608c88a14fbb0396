// Simulated GPUs of one host: their memory, and its registrations by NICs. The processor cannot
// read it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "memory/gpu_memory_facts.h"
#include "verbs_sim/nic_memory.h"

namespace rdmacoll::verbs_sim {

struct GpuModel {
  uint64_t bar1_bytes = uint64_t{256} << 20;
  bool is_bar1_known = true;
  bool gives_dma_bufs = true;
  WriteFlush write_flush = WriteFlush::read;
  GpuWays ways = {.sends = true, .receives = true};
};

struct GpuCounters {
  uint64_t finds = 0;
  uint64_t dma_bufs = 0;        // descriptors that were asked for
  uint64_t flushes = 0;         // by a call
  uint64_t sync_memops = 0;     // calls of set_sync_memops
  uint64_t stale_accesses = 0;  // by NICs, to other memory than is at the address
  uint64_t bar1_refusals = 0;   // registrations that did not fit
  uint64_t unsynchronized = 0;  // registrations before set_sync_memops
};

class SimGpus final : public GpuMemoryFacts, public GpusOfHost {
 public:
  // The physical memory of one allocation. Allocations and dma-bufs keep it.
  struct Memory {
    Gpu gpu = 0;
    std::size_t bytes = 0;
    // Empty until the first access.
    std::vector<std::byte> written;  // bytes that NICs and kernels wrote
    std::vector<std::byte> visible;  // bytes that kernels read
    bool is_synchronous = false;     // set_sync_memops
    struct Unflushed {
      const void* nic = nullptr;
      std::size_t begin = 0;
      std::size_t bytes = 0;
    };
    std::vector<Unflushed> unflushed;
  };

  explicit SimGpus(std::vector<GpuModel> models);
  ~SimGpus() override;
  SimGpus(const SimGpus&) = delete;
  SimGpus& operator=(const SimGpus&) = delete;

  GpuModel& model(Gpu gpu) { return models_[static_cast<std::size_t>(gpu)]; }
  const GpuCounters& counters() const { return counters_; }
  uint64_t bar1_used(Gpu gpu) const { return bar1_used_[static_cast<std::size_t>(gpu)]; }
  // Bytes of memory that exist, those without an address included.
  std::size_t bytes_alive();

  // ---- the caller ----
  std::byte* allocate(Gpu gpu, std::size_t bytes, bool is_capable = true);
  void free(std::byte* address);
  // Gives the address other memory, as virtual memory management can.
  void remap(std::byte* address);
  // As kernels do.
  void write(std::byte* to, std::span<const std::byte> bytes);
  std::vector<std::byte> read(const std::byte* from, std::size_t bytes) const;

  // ---- the driver ----
  GpuWays ways(Gpu gpu) const override { return models_[static_cast<std::size_t>(gpu)].ways; }
  std::string text(Gpu gpu) const override { return "GPU " + std::to_string(gpu); }
  bool find(const std::byte* address, GpuAllocation& allocation) override;
  Status dma_buf(Gpu gpu, const Piece& pages, Fd& descriptor) override;
  Status set_sync_memops(const GpuAllocation& allocation) override;
  uint64_t registrable_bytes(Gpu gpu) override;
  WriteFlush write_flush(Gpu gpu) override { return model(gpu).write_flush; }
  Status flush(Gpu gpu) override;

  // ---- a NIC ----
  bool owns(const std::byte* address) const override;
  int map(std::byte* address, std::size_t bytes, std::unique_ptr<Range>& range) override;
  int map_dma_buf(const rdma::DmaBufPart& part, std::unique_ptr<Range>& range) override;
  void flush_by(const void* nic, Gpu gpu) override;

 private:
  class Registered;
  struct Allocation {
    std::size_t bytes = 0;
    uint64_t buffer_id = 0;
    bool is_capable = true;
    std::shared_ptr<Memory> memory;
  };
  // The memory that was in a range of addresses when the descriptor was made.
  struct DmaBuf {
    const std::byte* begin = nullptr;
    std::size_t bytes = 0;
    uint64_t inode = 0;
    std::map<const std::byte*, std::shared_ptr<Memory>> memories;
  };

  const Allocation* holder(const std::byte* address, const std::byte** begin) const;
  std::shared_ptr<Memory> make_memory(Gpu gpu, std::size_t bytes);
  int charge(Registered range, std::unique_ptr<Range>& charged);
  void forget_closed();
  static void touch(Memory& memory);
  static void show(Memory& memory, const void* nic);

  std::vector<GpuModel> models_;
  std::vector<uint64_t> bar1_used_;
  GpuCounters counters_;
  std::byte* arena_ = nullptr;  // addresses without access
  std::map<std::byte*, std::size_t> holes_;
  std::set<Memory*> memories_;
  std::map<const std::byte*, Allocation> allocations_;
  std::map<int, DmaBuf> dma_bufs_;  // by descriptor, some of them closed
  uint64_t next_buffer_id_ = 1;
};

}  // namespace rdmacoll::verbs_sim
