// Worlds whose NICs read and write memory of GPUs. A fake CUDA driver has the memory, simulated
// NICs register it through that driver, and a recorded PCIe tree decides the ways.
#pragma once

#include <gtest/gtest.h>

#include <array>
#include <functional>
#include <iterator>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "every_kind.h"
#include "multiprocess/device_arrays.h"
#include "multiprocess/direct_machine.h"
#include "multiprocess/local_world.h"
#include "sim/values.h"

namespace rdmacoll {

inline constexpr GpuWays kStaged{};
inline constexpr GpuWays kBoth{.sends = true, .receives = true};
inline constexpr GpuWays kReceives{.receives = true};

inline constexpr const char* kModule = "nvidia_peermem 16384 0 - Live 0x0\n";

// Each registers and flushes in another way.
inline constexpr DirectModel kModels[] = {
    {"dma_buf", R"({"base": "h100"})", "hgx_h100", "mlx5_0", "", 1, kBoth, true},
    {"module_flushed_by_call",
     R"({"base": "h100", "cuda": 12000, "driver": "525.60.13",
         "gpus": [{"name": "NVIDIA A100", "attributes": {"75": 8, "118": 0, "124": 0}}]})",
     "hgx_h100", "mlx5_0", kModule, 1, kBoth, false},
    {"small_bar1_flushed_by_reads",
     R"({"base": "h100", "cuda": 12000, "driver": "525.60.13",
         "gpus": [{"name": "NVIDIA A100", "bar1_bytes": 306184192,
                   "attributes": {"75": 8, "117": 0, "118": 0, "124": 0}}]})",
     "hgx_h100", "mlx5_0", kModule, 1, kBoth, false},
    {"dma_buf_flushed_by_reads",
     R"({"base": "h100", "gpus": [{"attributes": {"75": 8, "117": 0, "118": 0}}]})", "hgx_h100",
     "mlx5_0", "", 1, kBoth, true},
    {"k80", R"({"base": "k80", "gpus": [{"pci": "0000:06:00.0"}, {"pci": "0000:07:00.0"}]})",
     "k80_two_sockets", "mlx4_0", kModule, 2, kReceives, false},
};

inline DirectMachine& machine_of(int model) {
  static std::array<std::unique_ptr<DirectMachine>, std::size(kModels)> machines;
  auto& machine = machines.at(static_cast<std::size_t>(model));
  if (machine == nullptr) machine = std::make_unique<DirectMachine>(kModels[model], RC_TEST_DATA);
  return *machine;
}

// A world whose ranks are hosts, each with a NIC that accesses its GPU.
class DirectWorld {
 public:
  DirectWorld(int ranks, int model, const std::string& settings = "")
      : machine_(machine_of(model)), fabric_({.seed = static_cast<uint64_t>(91 + model)}) {
    machine_.gpus().reset_counters();
    std::vector<SessionMachine> hosts;
    for (int rank = 0; rank < ranks; ++rank) hosts.push_back(machine_.host(fabric_, rank));
    world_ = std::make_unique<LocalWorld>(ranks, machine_.settings() + settings, hosts);
  }
  ~DirectWorld() {
    world_.reset();
    EXPECT_EQ(fabric_.counters().changed_under_way, 0U);
    const verbs_sim::CudaGpuCounters counters = machine_.gpus().counters();
    EXPECT_EQ(counters.stale_accesses, 0U);
    EXPECT_EQ(counters.unsynchronized, 0U);
    EXPECT_TRUE(may_refuse_ || counters.bar1_refusals == 0U) << counters.bar1_refusals;
    EXPECT_EQ(machine_.gpus().bar1_used(), 0U);
  }

  int ranks() const { return world_->size(); }
  Session& rank(int rank) { return world_->rank(rank); }
  void each(const std::function<void(int rank)>& body) { world_->each(body); }
  verbs_sim::CudaGpus& gpus() { return machine_.gpus(); }
  verbs_sim::ThreadedFabric& fabric() { return fabric_; }
  void allow_refusals() { may_refuse_ = true; }
  // A caller on the rank's GPU.
  std::unique_ptr<DeviceCaller> caller(int rank) {
    return std::make_unique<DeviceCaller>(rank % machine_.model().gpus, machine_.driver());
  }
  uint64_t sum(std::string_view name) {
    uint64_t total = 0;
    for (int rank = 0; rank < ranks(); ++rank) total += metric(world_->rank(rank), name);
    return total;
  }
  // Runs the operation on all ranks, on GPUs where `is_on_gpu` says so, and checks its results.
  void run_kind(
      const SimOperation& operation,
      const std::function<bool(int)>& is_on_gpu = [](int) { return true; }) {
    each([&](int number) {
      const std::unique_ptr<DeviceCaller> own = caller(number);
      SimMemory memory;
      Request request = sim_request(operation, number, number % 2 == 0, memory);
      Status status = is_on_gpu(number) ? own->take(rank(number), request) : Status();
      ASSERT_TRUE(status.ok()) << status.message();
      const auto submitted = std::make_shared<Operation>(std::move(request));
      status = rank(number).driver().submit_and_wait(submitted, 60 * kSecond);
      ASSERT_TRUE(status.ok()) << status.message();
      ASSERT_TRUE(submitted->done()) << rank(number).state();
      status = follow_end(*submitted);
      ASSERT_TRUE(status.ok()) << status.message();
      if (is_on_gpu(number)) own->fetch(*submitted);
      EXPECT_EQ(sim_error(operation, ranks(), number, *submitted), "")
          << operation.name << " on rank " << number;
    });
  }

 private:
  DirectMachine& machine_;
  verbs_sim::ThreadedFabric fabric_;
  std::unique_ptr<LocalWorld> world_;
  bool may_refuse_ = false;  // the driver may have no BAR1 for a registration
};

inline SimOperation broadcast_of(int64_t rows) {
  return {.kind = Kind::broadcast, .root = 1, .name = "weights", .shapes = {{rows, 2}, {rows, 3}}};
}
inline SimOperation sum_of(int64_t rows) {
  return {.name = "gradients", .shapes = {{rows, 2}, {rows}}};
}

}  // namespace rdmacoll
