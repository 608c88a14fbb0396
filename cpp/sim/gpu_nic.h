// A simulated rank's NIC that accesses memory of GPUs, through the registrations and the flushes of
// the RDMA transport.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "sim/gpu.h"
#include "sim/script.h"
#include "transport/rdma/gpu_flushes.h"
#include "transport/rdma/gpu_registrations.h"
#include "transport/sim/sim_gpu_access.h"
#include "transport/sim/sim_network.h"

namespace rdmacoll {

// The GPUs as the driver describes them to NICs.
class SimGpuFacts final : public GpuMemoryFacts {
 public:
  SimGpuFacts(const SimDirect& direct, SimGpus& gpus, std::function<void()> flush)
      : direct_(direct), gpus_(gpus), flush_(std::move(flush)) {}

  GpuWays ways(Gpu) const override { return direct_.ways; }
  std::string text(Gpu gpu) const override { return "GPU " + std::to_string(gpu); }
  bool find(const std::byte* address, GpuAllocation& allocation) override {
    return gpus_.find(address, allocation);
  }
  Status dma_buf(Gpu, const Piece&, Fd&) override { return {Code::failed, "no dma-buf"}; }
  Status set_sync_memops(const GpuAllocation&) override { return {}; }
  uint64_t registrable_bytes(Gpu) override { return direct_.bar1_bytes; }
  WriteFlush write_flush(Gpu) override { return direct_.flush; }
  Status flush(Gpu) override {
    flush_();
    return {};
  }

 private:
  const SimDirect& direct_;
  SimGpus& gpus_;
  const std::function<void()> flush_;
};

class SimGpuNic final : public SimGpuAccess, private rdma::Device, private rdma::FlushWaiter {
 public:
  // `ring` wakes the rank. All others outlive this object.
  SimGpuNic(const SimDirect& direct, SimNetwork& network, SimGpus& gpus,
            std::function<void()> ring);
  ~SimGpuNic() override;

  // The first wrong access, or "".
  const std::string& complaint() const { return complaint_; }
  const rdma::GpuRegistrations::Counters& counters() const { return registrations_.counters(); }
  uint64_t flushes() const { return flushes_done_; }

  GpuWays ways(Gpu gpu) const override { return facts_.ways(gpu); }
  bool pin(const Piece& memory) override { return registrations_.hold(memory); }
  void unpin(const Piece& memory) override { registrations_.release(memory); }
  bool is_pinned(const Piece& memory) const override { return registrations_.is_held(memory); }
  std::shared_ptr<const Hold> hold(std::span<const Piece> pieces) override;
  void flush(const Piece& written, std::function<void(const std::string& fault)> done) override;
  void push() override;
  bool needs_push() const override { return !completions_.empty() || flushes_.needs_push(); }

 private:
  class Registered;
  class Loop;
  class Held;
  // Registered memory by its remote key.
  struct Range {
    std::byte* begin = nullptr;
    std::size_t bytes = 0;
    uint64_t buffer_id = 0;  // 0: memory of the host
    uint64_t cost = 0;
    Gpu gpu = kHost;
  };
  struct Unflushed {
    const std::byte* address = nullptr;
    std::byte* visible = nullptr;
    std::vector<std::byte> bytes;
  };

  // ---- rdma::Device ----
  const rdma::DeviceFacts& facts() const override { return device_facts_; }
  bool is_there() const override { return true; }
  Status register_memory(std::byte* memory, std::size_t bytes,
                         std::unique_ptr<rdma::Registration>& registration) override;
  Status register_gpu_memory(std::byte* memory, std::size_t bytes,
                             std::unique_ptr<rdma::Registration>& registration) override;
  bool takes_dma_bufs() override { return false; }
  Status register_dma_buf(const rdma::DmaBufPart&, std::unique_ptr<rdma::Registration>&) override {
    return {Code::failed, "no dma-buf"};
  }
  Status create_queue_pair(const rdma::QueuePairLimits& limits, int port, int gid_index,
                           int pkey_index, std::unique_ptr<rdma::QueuePair>& queue_pair) override;
  std::size_t poll(std::span<rdma::Completion>, Status&) override { return 0; }
  Status arm() override { return {}; }
  int completion_fd() const override { return -1; }
  void take_completion_events() override {}
  int async_fd() const override { return -1; }
  bool take_async_event(rdma::AsyncEvent&) override { return false; }

  // ---- rdma::FlushWaiter ----
  void flushed(uint32_t number) override { end_flush(number, ""); }
  void flush_failed(const std::string& cause) override;

  void end_flush(uint32_t number, const std::string& fault);
  void show(Gpu gpu);
  void show_all();
  void complain(const std::string& sentence);
  // Checks the key, and that the memory is still that of the registration.
  void check(uint32_t key, const Piece& memory);
  void read(const Piece& memory, std::byte* into);
  void write(const Piece& memory, const std::byte* bytes);
  void finish_read(uint32_t key, const std::byte* address, uint64_t id);

  const SimDirect& direct_;
  SimNetwork& network_;
  SimGpus& gpus_;
  const std::function<void()> ring_;
  std::string complaint_;
  std::vector<Unflushed> unflushed_;
  std::map<uint32_t, Range> ranges_;
  uint32_t next_key_ = 16;
  std::array<uint64_t, SimGpus::kGpus> registered_bytes_{};
  std::deque<rdma::Completion> completions_;
  std::map<uint32_t, std::function<void(const std::string&)>> pending_;
  uint32_t next_flush_ = 0;
  uint64_t flushes_done_ = 0;
  // Network events may come after this object's end.
  const std::shared_ptr<bool> is_alive_ = std::make_shared<bool>(true);
  rdma::DeviceFacts device_facts_{.name = "sim0"};
  SimGpuFacts facts_;
  std::array<rdma::Device*, 1> devices_{this};
  std::array<rdma::Rail, 1> rails_{rdma::Rail{.device = "sim0", .mtu = 4096}};
  Transport::Counters transport_counters_;
  rdma::GpuRegistrations registrations_;
  rdma::GpuFlushes flushes_;
};

}  // namespace rdmacoll
