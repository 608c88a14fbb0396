// The start of a session tells of the direct way, before any array on a GPU comes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "base/runtime_library.h"
#include "multiprocess/direct_world.h"

namespace rdmacoll {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr DirectModel kSound{"sound", R"({"base": "h100"})", "hgx_h100", "mlx5_0", "", 1, kBoth,
                             true};
// Neither way of registration: closed kernel modules, and no nvidia_peermem.
constexpr DirectModel kLost{"lost",     R"({"base": "h100", "gpus": [{"attributes": {"124": 0}}]})",
                            "hgx_h100", "mlx5_0",
                            "",         1,
                            kStaged,    false,
                            false};
// The open modules may have dma-buf. Only CUDA's driver knows that this one has none.
constexpr DirectModel kUntold{
    "untold",   R"({"base": "h100", "gpus": [{"attributes": {"124": 0}}]})",
    "hgx_h100", "mlx5_0",
    "",         1,
    kStaged,    false};

// Two ranks on hosts of this machine, until their starts have succeeded or failed.
class Starts {
 public:
  Starts(DirectMachine& machine, const std::string& settings) : fabric_({.seed = 17}) {
    std::vector<std::string> cards(2);
    std::vector<int> leaders(2);
    for (int rank = 0; rank < 2; ++rank) {
      SessionMachine host = machine.host(fabric_, rank);
      const Status opened = Session::open(rank, 2, "test", std::vector<std::byte>(32),
                                          machine.settings() + settings, sessions[rank], host);
      RC_ASSERT(opened.ok(), opened.message());
      cards[rank] = sessions[rank]->card();
    }
    for (int rank = 0; rank < 2; ++rank) {
      const Status probed = sessions[rank]->probe_node(cards, leaders[rank]);
      RC_ASSERT(probed.ok(), probed.message());
      leaders[rank] = rank;
    }
    for (Status& status : results) status = Status::busy();
    while (results[0].is_busy() || results[1].is_busy()) {
      for (int rank = 0; rank < 2; ++rank) {
        if (results[rank].is_busy()) results[rank] = sessions[rank]->start(leaders, kMillisecond);
      }
    }
  }

 private:
  verbs_sim::ThreadedFabric fabric_;

 public:
  std::unique_ptr<Session> sessions[2];
  Status results[2];
};

long long calls_of(DirectMachine& machine, const char* function) {
  RuntimeLibrary library(machine.library());
  long long (*count)(const char* name) = nullptr;
  library.need("cuda_sim_count", count);
  return count(cat("calls ", function).c_str());
}

int times(const std::string& text, const std::string& part) {
  int found = 0;
  for (std::size_t at = text.find(part); at != text.npos; at = text.find(part, at + 1)) ++found;
  return found;
}

constexpr const char* kNoWay = "exports no dma-buf, and nvidia_peermem is not loaded";

TEST(GpuDirectStart, of_a_sound_machine_says_nothing) {
  DirectMachine machine(kSound, RC_TEST_DATA);
  testing::internal::CaptureStderr();
  {
    const Starts starts(machine, "RDMACOLL_GPUDIRECT=force\n");
    for (const Status& result : starts.results) EXPECT_TRUE(result.ok()) << result.message();
  }
  EXPECT_EQ(times(testing::internal::GetCapturedStderr(), "warning"), 0);
}

// The first array on the GPU does not say it again.
TEST(GpuDirectStart, warns_once_of_a_lost_direct_way_and_makes_no_context) {
  DirectMachine machine(kLost, RC_TEST_DATA);
  const long long inits = calls_of(machine, "cuInit");
  const long long contexts = calls_of(machine, "cuDevicePrimaryCtxRetain");
  testing::internal::CaptureStderr();
  {
    const Starts starts(machine, "");
    for (const Status& result : starts.results) EXPECT_TRUE(result.ok()) << result.message();
    EXPECT_EQ(calls_of(machine, "cuInit"), inits) << "the driver is not opened";
    EXPECT_EQ(calls_of(machine, "cuDevicePrimaryCtxRetain"), contexts);
    const std::string said = testing::internal::GetCapturedStderr();
    EXPECT_EQ(times(said, kNoWay), 2) << "one of each rank: " << said;
    EXPECT_THAT(said, HasSubstr("Install NVIDIA's open kernel modules"));
    testing::internal::CaptureStderr();
    DeviceCaller caller(0, machine.driver());
    Gpu gpu = kHost;
    for (const auto& session : starts.sessions) {
      DeviceMemory* memory = nullptr;
      ASSERT_TRUE(session->device_memory(memory).ok());
      const Status found = memory->find(caller.allocate(64), gpu);
      EXPECT_TRUE(found.ok()) << found.message();
    }
  }
  EXPECT_EQ(times(testing::internal::GetCapturedStderr(), kNoWay), 0);
}

TEST(GpuDirectStart, leaves_to_the_first_array_what_only_cuda_s_driver_knows) {
  DirectMachine machine(kUntold, RC_TEST_DATA);
  testing::internal::CaptureStderr();
  {
    const Starts starts(machine, "");
    for (const Status& result : starts.results) EXPECT_TRUE(result.ok()) << result.message();
    EXPECT_EQ(times(testing::internal::GetCapturedStderr(), "warning"), 0);
    testing::internal::CaptureStderr();
    DeviceCaller caller(0, machine.driver());
    DeviceMemory* memory = nullptr;
    Gpu gpu = kHost;
    ASSERT_TRUE(starts.sessions[0]->device_memory(memory).ok());
    ASSERT_TRUE(memory->find(caller.allocate(64), gpu).ok());
  }
  EXPECT_EQ(times(testing::internal::GetCapturedStderr(), kNoWay), 1);
}

TEST(GpuDirectStart, fails_if_a_way_is_forced_that_every_gpu_lacks) {
  DirectMachine machine(kLost, RC_TEST_DATA);
  const Starts starts(machine, "RDMACOLL_GPUDIRECT=receive:force\n");
  for (const Status& result : starts.results) {
    EXPECT_EQ(result.code(), Code::invalid);
    EXPECT_THAT(result.message(), AllOf(HasSubstr("mlx5_0 cannot write the memory of"),
                                        HasSubstr(kNoWay), HasSubstr("RDMACOLL_GPUDIRECT=auto")));
  }
}

TEST(GpuDirectStart, fails_if_a_way_is_forced_and_no_nic_moves_the_data) {
  DirectMachine machine(kSound, RC_TEST_DATA);
  const Starts starts(machine, "RDMACOLL_GPUDIRECT=force\nRDMACOLL_TRANSPORT=tcp\n");
  for (const Status& result : starts.results) {
    EXPECT_EQ(result.code(), Code::invalid);
    EXPECT_THAT(result.message(), HasSubstr("data goes over tcp, which no NIC moves by itself"));
  }
}

}  // namespace
}  // namespace rdmacoll
