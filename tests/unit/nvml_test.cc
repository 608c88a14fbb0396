// Facts of GPUs from NVIDIA's management library, scripted by functions of the test.
#include "cuda/nvml.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "base/text.h"

namespace rdmacoll::cuda {
namespace {

using ::testing::HasSubstr;

int init_result = 0;
int open_count = 0;  // calls of nvmlInit_v2 without nvmlShutdown

std::uintptr_t number_of(nvml::Device device) { return reinterpret_cast<std::uintptr_t>(device); }

int write(const std::string& from, char* text, unsigned bytes) {
  std::strncpy(text, from.c_str(), bytes);
  return 0;
}

// Two GPUs. The second handle has fallen off the bus.
nvml::Functions scripted() {
  init_result = open_count = 0;
  nvml::Functions call;
  call.nvmlInit_v2 = [] {
    open_count += init_result == 0 ? 1 : 0;
    return init_result;
  };
  call.nvmlShutdown = [] { return --open_count, 0; };
  call.nvmlDeviceGetCount_v2 = [](unsigned* count) { return *count = 3, 0; };
  call.nvmlDeviceGetHandleByIndex_v2 = [](unsigned index, nvml::Device* device) {
    *device = reinterpret_cast<nvml::Device>(static_cast<std::uintptr_t>(index + 1));
    return index == 1 ? 15 : 0;
  };
  call.nvmlDeviceGetUUID = [](nvml::Device device, char* text, unsigned bytes) {
    return write(cat("GPU-", number_of(device)), text, bytes);
  };
  return call;
}

nvml::Functions played_in_full() {
  nvml::Functions call = scripted();
  call.nvmlSystemGetDriverVersion = [](char* text, unsigned bytes) {
    return write("535.54.03", text, bytes);
  };
  call.nvmlDeviceGetName = [](nvml::Device, char* text, unsigned bytes) {
    return write("NVIDIA A100-SXM4-40GB", text, bytes);
  };
  call.nvmlDeviceGetPciInfo_v3 = [](nvml::Device device, nvml::Pci* pci) {
    std::strcpy(pci->address, number_of(device) == 1 ? "00000000:0A:00.0" : "00000001:07:00.0");
    return 0;
  };
  call.nvmlDeviceGetBAR1MemoryInfo = [](nvml::Device device, nvml::Bar1* bar1) {
    *bar1 = {64ULL << 30, 63ULL << 30, 1ULL << 30};
    return number_of(device) == 1 ? 0 : 3;  // not supported
  };
  call.nvmlDeviceGetMemoryInfo = [](nvml::Device, nvml::Memory* memory) {
    return memory->total = 40ULL << 30, 0;
  };
  call.nvmlDeviceGetComputeMode = [](nvml::Device, unsigned* mode) { return *mode = 3, 0; };
  call.nvmlDeviceGetMigMode = [](nvml::Device device, unsigned* mode, unsigned* pending) {
    *mode = *pending = number_of(device) == 3 ? 1 : 0;
    return 0;
  };
  call.nvmlDeviceGetCudaComputeCapability = [](nvml::Device, int* major, int* minor) {
    return *major = 8, *minor = 0, 0;
  };
  call.nvmlDeviceGetNvLinkState = [](nvml::Device device, unsigned link, unsigned* is_active) {
    *is_active = number_of(device) == 1 && link == 2 ? 1 : 0;
    return link < 12 ? 0 : 2;
  };
  return call;
}

TEST(Nvml, tells_the_facts_of_each_gpu) {
  const NvmlFacts facts = read_nvml(played_in_full());
  EXPECT_EQ(facts.problem, "");
  EXPECT_EQ(facts.driver_version, "535.54.03");
  ASSERT_EQ(facts.gpus.size(), 2U) << "a GPU without a handle is left out";
  const NvmlGpu& first = facts.gpus[0];
  EXPECT_EQ(first.uuid, "GPU-1");
  EXPECT_EQ(first.name, "NVIDIA A100-SXM4-40GB");
  EXPECT_EQ(first.address, "0000:0a:00.0");
  EXPECT_EQ(first.bar1_bytes, 64ULL << 30);
  EXPECT_EQ(first.bar1_free, 63ULL << 30);
  EXPECT_EQ(first.memory_bytes, 40ULL << 30);
  EXPECT_EQ(first.capability, 80);
  EXPECT_EQ(first.compute_mode, 3);
  EXPECT_FALSE(first.is_mig);
  EXPECT_TRUE(first.has_nvlink);
  const NvmlGpu& last = facts.gpus[1];
  EXPECT_EQ(last.address, "0001:07:00.0");
  EXPECT_EQ(last.bar1_bytes, std::nullopt);
  EXPECT_TRUE(last.is_mig);
  EXPECT_FALSE(last.has_nvlink);
  EXPECT_EQ(open_count, 0) << "its use has ended";
}

TEST(Nvml, finds_a_gpu_by_its_uuid) {
  const NvmlFacts facts = read_nvml(played_in_full());
  ASSERT_NE(facts.find("GPU-3"), nullptr);
  EXPECT_EQ(facts.find("GPU-3")->address, "0001:07:00.0");
  EXPECT_EQ(facts.find("GPU-2"), nullptr);
  EXPECT_EQ(facts.find(""), nullptr);
}

TEST(Nvml, leaves_out_facts_that_an_older_library_does_not_tell) {
  const NvmlFacts facts = read_nvml(scripted());
  EXPECT_EQ(facts.driver_version, "");
  ASSERT_EQ(facts.gpus.size(), 2U);
  EXPECT_EQ(facts.gpus[0].uuid, "GPU-1");
  EXPECT_EQ(facts.gpus[0].address, "");
  EXPECT_EQ(facts.gpus[0].bar1_bytes, std::nullopt);
  EXPECT_EQ(facts.gpus[0].capability, 0);
  EXPECT_EQ(facts.gpus[0].compute_mode, -1);
  EXPECT_FALSE(facts.gpus[0].has_nvlink);
}

TEST(Nvml, that_is_absent_or_fails_is_a_fact) {
  EXPECT_THAT(read_nvml("/nowhere/libnvidia-ml.so.1").problem, HasSubstr("/nowhere/libnvidia-ml"));
  EXPECT_THAT(read_nvml("libm.so.6").problem, HasSubstr("lacks the function nvmlInit_v2"));
  const nvml::Functions call = scripted();
  init_result = 9;  // NVML_ERROR_DRIVER_NOT_LOADED
  EXPECT_EQ(read_nvml(call).problem, "nvmlInit_v2 failed with 9: is the driver loaded?");
  EXPECT_EQ(open_count, 0);
}

}  // namespace
}  // namespace rdmacoll::cuda
