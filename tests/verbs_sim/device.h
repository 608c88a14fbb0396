// An open device of a simulated host.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <vector>

#include "base/fd.h"
#include "verbs_sim/fabric.h"
#include "verbs_sim/nic_memory.h"

namespace rdmacoll::verbs_sim {

class SimRegistration final : public rdma::Registration {
 public:
  SimRegistration(SimDevice& device, std::byte* memory, std::size_t bytes, rdma::MemoryKeys keys,
                  std::unique_ptr<GpusOfHost::Range> range = {})
      : device_(device), memory_(memory), bytes_(bytes), keys_(keys), range_(std::move(range)) {}
  ~SimRegistration() override;

  rdma::MemoryKeys keys() const override { return keys_; }
  std::byte* memory() const { return memory_; }
  std::size_t bytes() const { return bytes_; }
  bool holds(uint64_t address, uint64_t bytes) const;
  bool is_of_gpu() const { return range_ != nullptr; }
  GpusOfHost::Range* range() const { return range_.get(); }
  // Accesses by the NIC.
  void read(const std::byte* address, std::span<std::byte> into) const;
  void write(std::byte* address, std::span<const std::byte> bytes) const;

 private:
  SimDevice& device_;
  std::byte* const memory_;
  const std::size_t bytes_;
  const rdma::MemoryKeys keys_;
  const std::unique_ptr<GpusOfHost::Range> range_;  // null: memory of the host
};

// A completion, and the requests that its poll gives back.
struct QueuedCompletion {
  rdma::Completion shown;
  bool is_send = false;
  uint64_t request = 0;  // all requests up to this number are given back
};

class SimDevice final : public rdma::Device {
 public:
  SimDevice(SimFabric& fabric, Adapter& adapter, rdma::DeviceFacts facts, std::size_t completions);
  ~SimDevice() override;

  const rdma::DeviceFacts& facts() const override { return facts_; }
  bool is_there() const override { return !adapter_.is_gone; }
  Status register_memory(std::byte* memory, std::size_t bytes,
                         std::unique_ptr<rdma::Registration>& registration) override;
  Status register_gpu_memory(std::byte* memory, std::size_t bytes,
                             std::unique_ptr<rdma::Registration>& registration) override;
  bool takes_dma_bufs() override { return adapter_.model.takes_dma_bufs; }
  Status register_dma_buf(const rdma::DmaBufPart& part,
                          std::unique_ptr<rdma::Registration>& registration) override;
  // Returns true if the key of remote writes reaches these bytes. Counts stale ones as an access.
  bool would_write(uint32_t key, const std::byte* memory, std::size_t bytes) const;
  Status create_queue_pair(const rdma::QueuePairLimits& limits, int port, int gid_index,
                           int pkey_index, std::unique_ptr<rdma::QueuePair>& queue_pair) override;
  std::size_t poll(std::span<rdma::Completion> into, Status& status) override;
  Status arm() override;
  int completion_fd() const override { return completion_event_.get(); }
  void take_completion_events() override;
  int async_fd() const override { return async_event_.get(); }
  bool take_async_event(rdma::AsyncEvent& event) override;

 private:
  friend class SimFabric;
  friend class SimQueuePair;
  friend class SimRegistration;

  void push(QueuedCompletion completion);
  void tell(rdma::AsyncEvent event);
  void remove(SimQueuePair& queue_pair);
  void remove(SimRegistration& registration);
  void add(std::byte* memory, std::size_t bytes, std::unique_ptr<GpusOfHost::Range> range,
           std::unique_ptr<rdma::Registration>& registration);
  // The registration of a local key. Null for bytes without one, as inlined ones are.
  const SimRegistration* find_local(uint32_t key) const;
  SimQueuePair* find_queue_pair(uint32_t number) const;
  // Returns null if the key is not a current key of this device.
  const SimRegistration* find_remote(uint32_t key) const;
  void check_local(const rdma::Sge& piece) const;
  Status gone() const;

  SimFabric& fabric_;
  Adapter& adapter_;
  const rdma::DeviceFacts facts_;
  const std::size_t completions_max_;
  Fd completion_event_;
  Fd async_event_;
  std::deque<QueuedCompletion> completions_;
  std::deque<rdma::AsyncEvent> async_events_;
  std::vector<SimQueuePair*> queue_pairs_;
  std::map<uint32_t, SimRegistration*> registrations_;  // by local key
  std::size_t locked_bytes_ = 0;
  uint32_t next_key_;
  bool is_armed_ = false;
  bool is_queue_broken_ = false;
};

}  // namespace rdmacoll::verbs_sim
