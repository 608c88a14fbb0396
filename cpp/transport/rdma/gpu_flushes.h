// Makes what NICs have written to GPU memory visible to kernels of the GPU. A read by a NIC pushes
// the writes of the same NIC before it. So each NIC has a queue pair that is connected to itself,
// and reads a byte that it has just written.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "memory/piece.h"
#include "transport/rdma/choose_device.h"
#include "transport/rdma/gpu_registrations.h"
#include "transport/rdma/verbs.h"

namespace rdmacoll::rdma {

class FlushWaiter {
 public:
  virtual ~FlushWaiter() = default;
  // The flush that was requested with this number is done.
  virtual void flushed(uint32_t number) = 0;
  virtual void flush_failed(const std::string& cause) = 0;
};

class GpuFlushes {
 public:
  // `path`: the settings of paths to peers.
  GpuFlushes(GpuRegistrations& registrations, std::span<Device* const> devices,
             std::span<const Rail> rails, const PathSettings& path, Transport::Counters& counters);
  ~GpuFlushes();
  GpuFlushes(const GpuFlushes&) = delete;
  GpuFlushes& operator=(const GpuFlushes&) = delete;

  // The entries of a completion queue that the flushes of its NIC need.
  static constexpr uint32_t kCompletions = 1;

  // Call when all writes before are complete. `written`: a byte that this NIC wrote, in held
  // memory. The waiter hears of the end during a later call.
  void ask(std::size_t rail, const std::byte* written, FlushWaiter& waiter, uint32_t number);
  // Drops the waiter's requests. It is not called for them.
  void forget(const FlushWaiter& waiter);
  bool owns(std::size_t rail, uint32_t queue_pair) const;
  void handle(std::size_t rail, const Completion& completion);
  // Posts the reads that may leave now.
  void push();
  // Returns true if push() has something to do.
  bool needs_push() const;

 private:
  struct Ticket {
    FlushWaiter* waiter = nullptr;
    uint32_t number = 0;
    Piece written;
  };
  // One read at a time. It serves all requests for one GPU that were made before it was posted.
  struct Nic {
    std::unique_ptr<QueuePair> queue_pair;
    std::vector<Ticket> waiting;
    std::vector<Ticket> under_way;
    bool is_reading = false;
    std::string fault;
  };

  Status open(std::size_t rail);
  void push(std::size_t rail);
  Status read(std::size_t rail, const std::byte* written, bool& is_posted);
  void end(std::vector<Ticket>& tickets, const std::string& fault);

  GpuRegistrations& registrations_;
  std::span<Device* const> devices_;
  std::span<const Rail> rails_;
  const PathSettings path_;
  Transport::Counters& counters_;
  // A byte for each NIC. It is not of the pool, which may be exhausted when a flush is needed.
  std::array<std::byte, kRailsMax> landing_{};
  bool is_registered_ = false;
  RegisteredMemory registered_;
  std::array<Nic, kRailsMax> nics_;
};

}  // namespace rdmacoll::rdma
