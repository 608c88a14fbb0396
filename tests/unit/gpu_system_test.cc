// The GPUs and NICs of recorded machines, and the decision for each pair.
#include "cuda/gpu_system.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "base/text.h"
#include "cuda/direct_ways.h"
#include "cuda/gpu_report.h"
#include "unit/pci_tree_folder.h"
#include "unit/scripted_cuda.h"

namespace rdmacoll::cuda {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::string recorded(const std::string& name) {
  return cat(RC_TEST_DATA, "/pci_trees/", name, ".txt");
}

// The machine of a recorded tree. No library tells anything of its GPUs.
GpuSystem machine(const PciTreeFolder& folder, const std::string& proc = "/nonexistent") {
  return read_gpu_system({.sys = folder.path(),
                          .proc = proc,
                          .cuda_library = "/nonexistent/libcuda.so.1",
                          .nvml_library = "/nonexistent/libnvidia-ml.so.1"});
}

GpuProfile k80(const std::string& address) {
  return {.name = "Tesla K80",
          .uuid = cat("GPU-", address),
          .address = address,
          .capability = 37,
          .memory_bytes = 12ULL << 30,
          .bar1_bytes = 16ULL << 30,
          .bar1_free = 16ULL << 30,
          .gpudirect = Known::yes,
          .dma_buf = Known::no,
          .writes_ordering = {},
          .flush_options = {}};
}

// Two K80 boards. The facts that libraries tell are written in.
GpuSystem two_boards(const PciTreeFolder& folder, Known module = Known::yes) {
  GpuSystem system = machine(folder);
  for (SystemGpu& gpu : system.gpus) gpu.profile = k80(gpu.profile.address);
  system.host.peer_module = module;
  system.host.driver_major = 470;
  return system;
}

std::vector<std::string> shown(const std::vector<Cell>& cells) {
  std::vector<std::string> texts;
  for (const Cell& cell : cells) {
    texts.push_back(cat(text(cell.way.distance), " ", text(cell.decision.send.cause), " ",
                        text(cell.decision.receive.way)));
  }
  return texts;
}

TEST(GpuSystem, decides_for_each_pair) {
  const PciTreeFolder folder(recorded("k80_two_sockets"));
  const GpuSystem system = two_boards(folder);
  const std::vector<Cell> cells = decide_all(system, {});
  EXPECT_THAT(shown(cells), ElementsAre("PXB slow_reads peer_memory", "PXB slow_reads peer_memory",
                                        "SYS slow_reads staged", "SYS slow_reads staged"));
  EXPECT_EQ(cells[0].decision.flush, WriteFlush::read);
  // The board at the other socket loses its direct way. Each of its GPUs is named.
  EXPECT_THAT(
      warnings_of(system, cells),
      ElementsAre(AllOf(HasSubstr("mlx4_0 does not write the memory of Tesla K80 (GPU-0000:84"),
                        HasSubstr("at different sockets")),
                  HasSubstr("Tesla K80 (GPU-0000:85")));
}

TEST(GpuSystem, warns_once_for_each_gpu_and_not_where_a_nearer_nic_is_direct) {
  const PciTreeFolder folder(recorded("dgx1_v100"));
  GpuSystem system = machine(folder);
  for (SystemGpu& gpu : system.gpus) {
    gpu.profile = k80(gpu.profile.address);
    gpu.profile.name = "Tesla V100-SXM2-16GB";
    gpu.profile.capability = 70;
    gpu.profile.has_nvlink = true;
  }
  system.host.driver_major = 470;
  system.host.peer_module = Known::yes;
  std::vector<Cell> cells = decide_all(system, {});
  EXPECT_THAT(shown(cells), ElementsAre("PIX none peer_memory", "PHB no_shared_switch staged",
                                        "SYS far_socket staged", "? software_nic staged",
                                        "PIX none peer_memory", "PHB no_shared_switch staged",
                                        "SYS far_socket staged", "? software_nic staged"));
  EXPECT_THAT(warnings_of(system, cells), IsEmpty());
  EXPECT_THAT(cells[2].decision.send.change, HasSubstr("RDMACOLL_DEVICE=mlx5_0"));

  system.host.peer_module = Known::no;
  EXPECT_EQ(warnings_of(system, decide_all(system, {})).size(), 2U);

  // The nearest NIC has no cable, so the far one counts.
  system.host.peer_module = Known::yes;
  system.nics[0].is_active = system.nics[1].is_active = false;
  EXPECT_THAT(warnings_of(system, decide_all(system, {})),
              ElementsAre(HasSubstr("mlx5_2 does not read and write"), HasSubstr("mlx5_2")));
}

TEST(GpuSystem, forgives_a_nic_that_cannot_what_is_forced_if_another_one_can) {
  const PciTreeFolder folder(recorded("dgx1_v100"));
  GpuSystem system = machine(folder);
  for (SystemGpu& gpu : system.gpus) gpu.profile = k80(gpu.profile.address);
  system.host = {.peer_module = Known::yes, .driver_major = 470};
  const GpuDirectSetting forced{GpuDirectMode::force, GpuDirectMode::force};
  const auto errors = [&](std::span<const std::string> used) {
    std::vector<std::string> texts;
    for (const Cell& cell : decide_all(system, forced, used)) {
      if (!cell.decision.status.ok()) texts.push_back(cell.decision.status.message());
    }
    return texts;
  };
  EXPECT_THAT(errors({}), IsEmpty()) << "the device in software cannot";
  const std::vector<std::string> software{system.nics.back().name};
  ASSERT_TRUE(system.nics.back().is_software);
  EXPECT_THAT(errors(software), ElementsAre(HasSubstr("is a device in software"),
                                            HasSubstr("is a device in software")))
      << "of each GPU";
  system.host.peer_module = Known::no;
  EXPECT_EQ(errors({}).size(), 2 * system.nics.size()) << "none can";
}

// Ways of a job that uses the NICs of these names.
std::vector<DirectWay> ways_of_job(const GpuSystem& system, std::vector<std::string> nics,
                                   const GpuDirectSetting& setting = {}) {
  return direct_ways(system, setting, nics);
}

TEST(GpuDirectWays, are_direct_if_all_nics_of_the_job_are) {
  const PciTreeFolder folder(recorded("dgx1_v100"));
  GpuSystem system = machine(folder);
  for (SystemGpu& gpu : system.gpus) {
    gpu.profile = k80(gpu.profile.address);
    gpu.profile.capability = 70;
    gpu.profile.has_nvlink = true;
  }
  system.host = {.peer_module = Known::yes, .driver_major = 470};
  const GpuWays both{.sends = true, .receives = true};
  std::vector<DirectWay> ways = ways_of_job(system, {"mlx5_0"});
  ASSERT_EQ(ways.size(), system.gpus.size());
  EXPECT_EQ(ways[0].ways, both);
  EXPECT_EQ(ways[0].warning, "");
  EXPECT_EQ(ways[0].registrable_bytes, (16ULL << 30) - (32 << 20));

  ways = ways_of_job(system, {"mlx5_0", "mlx5_1"});
  EXPECT_EQ(ways[0].ways, GpuWays{});
  EXPECT_THAT(ways[0].warning, HasSubstr("each transfer also uses mlx5_1"));
  EXPECT_THAT(ways[0].warning, HasSubstr("Set RDMACOLL_DEVICE=mlx5_0."));

  ways = ways_of_job(system, {"mlx5_2"});
  EXPECT_EQ(ways[0].ways, GpuWays{});
  EXPECT_THAT(ways[0].warning, HasSubstr("at different sockets (SYS). Use mlx5_0"));
  EXPECT_TRUE(ways_of_job(system, {}).empty());
}

TEST(GpuDirectWays, follow_the_setting_in_each_direction) {
  const PciTreeFolder folder(recorded("hgx_h100"));
  GpuSystem system = machine(folder);
  for (SystemGpu& gpu : system.gpus) {
    gpu.profile = k80(gpu.profile.address);
    gpu.profile.capability = 90;
  }
  system.host = {.peer_module = Known::yes, .driver_major = 535};
  const std::vector<std::string> nic{system.nics.front().name};
  const auto ways = [&](const char* text) {
    return direct_ways(system, gpudirect_from(text).value(), nic).front();
  };
  EXPECT_EQ(ways("auto").ways, (GpuWays{.sends = true, .receives = true}));
  EXPECT_EQ(ways("off").ways, GpuWays{});
  EXPECT_THAT(ways("off").warning, HasSubstr("turns the direct way off"));
  EXPECT_EQ(ways("send:off").ways, (GpuWays{.sends = false, .receives = true}));
  EXPECT_EQ(ways("send:off").text(), "send staged, receive direct");
  EXPECT_EQ(ways("receive:off").ways, (GpuWays{.sends = true, .receives = false}));
  EXPECT_EQ(ways("force").ways, (GpuWays{.sends = true, .receives = true}));
  EXPECT_TRUE(ways("force").status.ok());
  system.host.peer_module = Known::no;
  EXPECT_EQ(ways("force").ways, GpuWays{});
  EXPECT_EQ(ways("force").status.code(), Code::invalid);
  EXPECT_THAT(ways("receive:force").status.message(), HasSubstr("cannot write the memory of"));
}

TEST(GpuDirectWays, of_a_nic_that_no_tree_shows_are_lost_with_a_warning) {
  GpuSystem system;
  system.gpus.emplace_back().profile = k80("0000:06:00.0");
  system.host = {.peer_module = Known::yes, .driver_major = 470};
  const DirectWay way = ways_of_job(system, {"mlx5_7"}).front();
  EXPECT_EQ(way.ways, GpuWays{});
  EXPECT_THAT(way.warning, HasSubstr("mlx5_7 does not write"));
  EXPECT_THAT(way.warning, HasSubstr("shows no PCIe tree in /sys"));
}

TEST(GpuDirectWays, are_found_by_the_uuid_or_by_the_address) {
  const std::vector<DirectWay> ways = {{.uuid = "GPU-a", .address = "0000:0a:00.0"},
                                       {.uuid = "GPU-b", .address = "0000:0b:00.0"}};
  GpuFacts facts;
  facts.uuid = "GPU-b";
  facts.pci = "0000:0a:00.0";
  EXPECT_EQ(find_way(ways, facts), &ways[1]);
  facts.uuid = "MIG-c";
  EXPECT_EQ(find_way(ways, facts), &ways[0]) << "a part of a GPU";
  facts.pci = "0000:0c:00.0";
  EXPECT_EQ(find_way(ways, facts), nullptr);
}

TEST(GpuSystem, finds_gpus_in_the_tree_that_no_library_tells) {
  const PciTreeFolder folder(recorded("hgx_h100"));
  const GpuSystem system = machine(folder);
  ASSERT_EQ(system.gpus.size(), 2U);
  EXPECT_EQ(system.gpus[0].profile.name, "NVIDIA GPU");
  EXPECT_EQ(system.gpus[0].profile.address, "0000:1b:00.0");
  EXPECT_EQ(system.gpus[0].place.numa_node, 0);
  EXPECT_THAT(system.nvml_problem, HasSubstr("libnvidia-ml.so.1"));
  EXPECT_THAT(system.cuda_problem, HasSubstr("libcuda.so.1"));
  EXPECT_EQ(system.host.peer_module, Known::unknown) << "/proc/modules is not there";
  EXPECT_EQ(decide_all(system, {}).size(), 4U);
}

TEST(GpuSystem, does_not_open_the_cuda_driver_without_a_gpu) {
  const PciTreeFolder folder;
  const GpuSystem system = machine(folder);
  EXPECT_THAT(system.gpus, IsEmpty());
  EXPECT_EQ(system.cuda_problem, "");
  EXPECT_FALSE(system.host.sys_is_readable);
  EXPECT_EQ(gpu_report_json(system, {}).substr(0, 16), "{\"driver\": null,");
}

TEST(GpuSystem, reads_the_kernel_and_the_driver_of_the_machine) {
  const PciTreeFolder folder(recorded("hgx_h100"));
  const PciTreeFolder proc;
  const auto write = [&](const std::string& name, const std::string& text) {
    const std::filesystem::path file = std::filesystem::path(proc.path()) / name;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
  };
  write("modules", "nvidia 56598528 147 - Live 0x0\nnvidia_peermem 16384 0 - Live 0x0\n");
  write("driver/nvidia/version",
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  470.256.02  Thu May  2 14:37:44 UTC 2024\n"
        "GCC version:  gcc version 12.2.0\n");
  write("sys/kernel/osrelease", "5.14.0-427.el9.x86_64\n");
  GpuSystem system = machine(folder, proc.path());
  EXPECT_EQ(system.driver_version, "470.256.02");
  EXPECT_EQ(system.host.driver_major, 470);
  EXPECT_EQ(system.module_name, "nvidia_peermem");
  EXPECT_EQ(system.host.peer_module, Known::yes);
  EXPECT_EQ(system.kernel_major, 5);
  EXPECT_EQ(system.kernel_minor, 14);
  write("modules", "nvidia 56598528 147 - Live 0x0\n");
  system = machine(folder, proc.path());
  EXPECT_EQ(system.host.peer_module, Known::no);
  write("modules", "nv_peer_mem 16384 0 - Live 0x0\n");
  EXPECT_EQ(machine(folder, proc.path()).module_name, "nv_peer_mem");
  write("modules", "my_nv_peer_mem 16384 0 - Live 0x0\n");
  EXPECT_EQ(machine(folder, proc.path()).module_name, "");
}

std::string uuid(char letter) {
  const auto of = [&](std::size_t length) { return std::string(length, letter); };
  return cat("GPU-", of(8), "-", of(4), "-", of(4), "-", of(4), "-", of(12));
}

TEST(GpuSystem, matches_cuda_and_nvml_by_uuid) {
  cuda_test::ScriptedCuda cuda(2);
  cuda.devices[0].uuid = 0xaa;
  cuda.devices[1].uuid = 0xbb;
  cuda.devices[1].name = "NVIDIA H100 80GB HBM3";
  // NVML counts the GPUs the other way round.
  NvmlFacts nvml;
  nvml.gpus.resize(2);
  nvml.gpus[0].uuid = uuid('b');
  nvml.gpus[0].address = "0000:0b:00.0";
  nvml.gpus[0].bar1_bytes = 128ULL << 30;
  nvml.gpus[1].uuid = uuid('a');
  nvml.gpus[1].address = "0000:0a:00.0";
  nvml.gpus[1].bar1_bytes = 16ULL << 30;
  std::vector<SystemGpu> gpus;
  add_nvml_facts(nvml, gpus);
  ASSERT_TRUE(add_cuda_facts(cuda.driver(), gpus).ok());
  ASSERT_EQ(gpus.size(), 2U);
  for (const SystemGpu& gpu : gpus) {
    const bool is_second = gpu.profile.address == "0000:0b:00.0";
    EXPECT_EQ(gpu.profile.name, is_second ? "NVIDIA H100 80GB HBM3" : "Tesla K80");
    EXPECT_EQ(gpu.profile.uuid, uuid(is_second ? 'b' : 'a'));
    EXPECT_EQ(gpu.profile.bar1_bytes, (is_second ? 128ULL : 16ULL) << 30);
  }
}

// The facts of CUDA's driver are not known, and the best is taken for them.
TEST(GpuSystem, has_certain_losses_only_if_each_gpu_has_one) {
  const PciTreeFolder folder(recorded("k80_two_sockets"));
  const std::vector<std::string> nic{"mlx4_0"};
  GpuSystem system = two_boards(folder);
  for (SystemGpu& gpu : system.gpus) gpu.profile.gpudirect = gpu.profile.dma_buf = Known::unknown;
  CertainLosses losses = certain_losses(system, {}, nic);
  EXPECT_EQ(losses.warning, "") << "the board at the NIC's socket";
  EXPECT_TRUE(certain_losses(system, gpudirect_from("force").value(), nic).status.ok());

  system.host.peer_module = Known::no;
  losses = certain_losses(system, {}, nic);
  EXPECT_THAT(losses.warning, HasSubstr("does not write the memory of Tesla K80"));
  EXPECT_THAT(losses.warning, HasSubstr(" No other GPU here has the direct way either."));
  // The other board has another cause, and its own cure.
  EXPECT_EQ(losses.texts.size(), 2U);
  for (const std::string& text : losses.texts) {
    EXPECT_THAT(text, testing::Not(HasSubstr("different sockets")));
  }
  EXPECT_THAT(certain_losses(system, gpudirect_from("force").value(), nic).status.message(),
              HasSubstr("RDMACOLL_GPUDIRECT=force, but mlx4_0 cannot read the memory of"));
  EXPECT_EQ(certain_losses(system, {}, {}).warning, "") << "no NIC carries data";

  // A container has only the GPU that NVML shows.
  for (SystemGpu& gpu : system.gpus) {
    if (gpu.profile.address.starts_with("0000:0")) gpu.profile.uuid = "";
  }
  system.host.peer_module = Known::yes;
  EXPECT_THAT(certain_losses(system, {}, nic).warning, HasSubstr("at different sockets"));
}

TEST(GpuSystem, may_have_dma_buf_with_open_kernel_modules_only) {
  const PciTreeFolder folder(recorded("hgx_h100"));
  const std::vector<std::string> nic{"mlx5_0"};
  for (const Known is_open : {Known::yes, Known::no, Known::unknown}) {
    GpuSystem system = machine(folder);
    system.gpus.resize(1);  // the other one shares no switch with a NIC
    system.is_open = is_open;
    system.host.driver_major = 535;
    system.host.peer_module = Known::no;
    system.kernel_major = 6;
    for (SystemGpu& gpu : system.gpus) {
      gpu.profile = k80(gpu.profile.address);
      gpu.profile.capability = 90;
    }
    const std::string warning = certain_losses(system, {}, nic).warning;
    EXPECT_EQ(warning.find("exports no dma-buf") != warning.npos, is_open == Known::no) << warning;
  }
}

// Two looks at files, so that a start without a GPU costs no more.
TEST(GpuSystem, knows_whether_a_driver_is_loaded) {
  const PciTreeFolder empty, loaded;
  EXPECT_FALSE(has_gpu_driver({.sys = empty.path(), .proc = empty.path()}));
  std::filesystem::create_directories(loaded.path() + "/driver/nvidia");
  std::ofstream(loaded.path() + "/driver/nvidia/version") << "NVRM version: NVIDIA UNIX x86_64\n";
  EXPECT_TRUE(has_gpu_driver({.sys = empty.path(), .proc = loaded.path()}));
  std::filesystem::create_directories(loaded.path() + "/module/nvidia");
  EXPECT_TRUE(has_gpu_driver({.sys = loaded.path(), .proc = empty.path()}));
}

TEST(GpuSystem, keeps_gpus_without_a_known_address_apart) {
  NvmlFacts nvml;
  nvml.gpus.resize(2);
  nvml.gpus[0].uuid = uuid('a');
  nvml.gpus[1].uuid = uuid('b');
  std::vector<SystemGpu> gpus;
  add_nvml_facts(nvml, gpus);
  ASSERT_EQ(gpus.size(), 2U);
  EXPECT_EQ(gpus[0].profile.uuid, uuid('a'));
}

TEST(GpuSystem, is_told_as_json) {
  const PciTreeFolder folder(recorded("k80_two_sockets"));
  const std::string json = gpu_report_json(two_boards(folder), {});
  EXPECT_THAT(json, HasSubstr(R"("gpus": [{"name": "Tesla K80", "uuid": "GPU-0000:06:00.0", )"
                              R"("address": "0000:06:00.0", "capability": "3.7", )"));
  EXPECT_THAT(json, HasSubstr(R"("nics": [{"name": "mlx4_0", "address": "0000:08:00.0", )"
                              R"("driver": "mlx4_core", "numa_node": 0, "active": true)"));
  EXPECT_THAT(json, HasSubstr(R"("cells": [{"gpu": 0, "nic": 0, "distance": "PXB", )"
                              R"("switch": "PLX switch 0000:02:00.0", "acs": null)"));
  EXPECT_THAT(json, HasSubstr(R"("receive": {"way": "peer_memory", "cause": "none", )"
                              R"("reason": "direct by the peer-memory module, PCIe switches)"));
}

}  // namespace
}  // namespace rdmacoll::cuda
