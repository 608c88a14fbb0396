// Registered staging buffers, for memory that devices may not access.
#pragma once

#include <cstdint>
#include <vector>

#include "memory/pool.h"
#include "transport/rdma/slabs.h"

namespace rdmacoll::rdma {

class Stages {
 public:
  Stages(MemoryPool& pool, std::span<Device* const> devices, Transport::Counters& counters);
  Stages(const Stages&) = delete;
  Stages& operator=(const Stages&) = delete;
  ~Stages();

  uint32_t bytes() const { return bytes_; }
  // Returns false if no buffer is free. If buffers cannot be made at all, `status` has the error.
  // The first call makes the buffers.
  bool take(uint16_t& index, Status& status);
  void free(uint16_t index) { free_.push_back(index); }
  std::byte* at(uint16_t index) const { return memory_ + std::size_t{index} * bytes_; }
  const RailKeys& keys() const { return registered_.keys(); }

 private:
  Status make();

  MemoryPool& pool_;
  std::span<Device* const> devices_;
  const uint32_t bytes_;  // size of one
  Transport::Counters& counters_;
  std::byte* memory_ = nullptr;
  RegisteredMemory registered_;
  std::vector<uint16_t> free_;
};

}  // namespace rdmacoll::rdma
