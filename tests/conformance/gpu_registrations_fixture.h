// The registrations of GPU memory of one rank, with simulated NICs.
#pragma once

#include <gmock/gmock.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "transport/rdma/gpu_registrations.h"
#include "verbs_sim/device.h"
#include "verbs_sim/fabric.h"
#include "verbs_sim/gpus.h"

namespace rdmacoll::rdma {

inline constexpr Gpu kTestGpu = 0;

class RdmaGpuRegistrations : public testing::Test {
 protected:
  void make(verbs_sim::GpuModel gpu = {}, int nics = 1, bool has_peer_memory = true,
            bool takes_dma_bufs = true) {
    gpus_ = std::make_unique<verbs_sim::SimGpus>(std::vector<verbs_sim::GpuModel>{gpu, {}});
    std::vector<verbs_sim::AdapterModel> adapters;
    for (int i = 0; i < nics; ++i) {
      adapters.push_back(verbs_sim::ethernet(0, i));
      adapters.back().has_peer_memory = has_peer_memory;
      adapters.back().takes_dma_bufs = takes_dma_bufs;
    }
    verbs_sim::SimVerbs& verbs = fabric_.add_host(adapters, gpus_.get());
    for (const auto& adapter : adapters) {
      nics_.emplace_back();
      ASSERT_TRUE(verbs.open({adapter.facts.name, 4}, nics_.back()).ok());
      devices_.push_back(nics_.back().get());
    }
    registrations_ = std::make_unique<GpuRegistrations>(
        *gpus_, devices_, transport_counters_,
        [this](const std::string& sentence) { said_.push_back(sentence); });
  }
  // Lets each NIC write to the memory, as peers that have its keys do.
  ::testing::AssertionResult is_reached(const Piece& memory) {
    for (std::size_t done = 0; done < memory.bytes;) {
      std::byte* at = memory.data + done;
      const std::size_t bytes = std::min(memory.bytes - done, registrations_->reach(at));
      for (std::size_t rail = 0; rail < devices_.size(); ++rail) {
        const auto& device = static_cast<const verbs_sim::SimDevice&>(*devices_[rail]);
        if (!device.would_write(registrations_->keys(at)[rail].remote, at, bytes)) {
          return ::testing::AssertionFailure() << "NIC " << rail << " has no key";
        }
      }
      done += bytes;
    }
    const uint64_t stale = gpus_->counters().stale_accesses;
    if (stale == 0) return ::testing::AssertionSuccess();
    return ::testing::AssertionFailure() << stale << " accesses to other memory";
  }
  bool use(const Piece& memory) {
    if (!registrations_->hold(memory)) return false;
    EXPECT_TRUE(is_reached(memory));
    registrations_->release(memory);
    return true;
  }
  std::byte* allocate(std::size_t bytes) { return gpus_->allocate(kTestGpu, bytes); }
  uint64_t registered() const { return registrations_->counters().registrations; }

  std::unique_ptr<verbs_sim::SimGpus> gpus_;
  verbs_sim::SimFabric fabric_{{.seed = 3}};
  std::vector<std::unique_ptr<Device>> nics_;
  std::vector<Device*> devices_;
  Transport::Counters transport_counters_;
  std::vector<std::string> said_;
  std::unique_ptr<GpuRegistrations> registrations_;
};

}  // namespace rdmacoll::rdma
