// Machines whose NICs access memory of GPUs: a recorded PCIe tree, a fake CUDA driver, and
// simulated NICs.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "api/session.h"
#include "base/text.h"
#include "bootstrap/transports.h"
#include "cuda_sim/library.h"
#include "multiprocess/device_arrays.h"
#include "transport/rdma/provider.h"
#include "unit/pci_tree_folder.h"
#include "verbs_sim/cuda_gpus.h"
#include "verbs_sim/threads.h"

namespace rdmacoll {

struct DirectModel {
  const char* name;
  const char* driver;  // as CUDA_SIM_MACHINE describes it
  const char* tree;    // in tests/unit/pci_trees
  const char* nic;
  const char* modules;  // as in /proc/modules
  int gpus;
  GpuWays ways;  // the policy's choice
  bool has_dma_buf;
  bool has_open_modules = true;  // NVIDIA's
};

// A machine, of which all ranks have their own copy. Each has its own NICs, and all share the GPUs.
// It stays until the process ends, since the driver does.
class DirectMachine {
 public:
  DirectMachine(const DirectModel& model, const std::string& data)
      : model_(model), sys_(cat(data, "/pci_trees/", model.tree, ".txt")) {
    const std::filesystem::path proc = proc_.path();
    std::ofstream(proc / "modules") << "nvidia 56598528 147 - Live 0x0\n" << model.modules;
    std::filesystem::create_directories(proc / "driver/nvidia");
    std::ofstream(proc / "driver/nvidia/version")
        << "NVRM version: NVIDIA UNIX " << (model.has_open_modules ? "Open Kernel Module for " : "")
        << "x86_64 " << (model.has_open_modules ? "" : "Kernel Module ") << " 535.54.03  Release\n";
    std::filesystem::create_directories(proc / "sys/kernel");
    std::ofstream(proc / "sys/kernel/osrelease") << "6.1.0-18-amd64\n";
    std::ofstream(proc / "machine.json") << model.driver;
    library_ = (proc / "libcuda_sim.so").string();
    std::filesystem::copy_file(cuda_sim::library_path(), library_);
    // Each copy of the driver emulates its own machine, which it reads at the first call.
    const char* const before = std::getenv("CUDA_SIM_MACHINE");
    const std::string kept = before != nullptr ? before : "";
    ::setenv("CUDA_SIM_MACHINE", (proc / "machine.json").c_str(), 1);
    driver_ = &fake_cuda(library_);
    before != nullptr ? ::setenv("CUDA_SIM_MACHINE", kept.c_str(), 1)
                      : ::unsetenv("CUDA_SIM_MACHINE");
    gpus_ = &verbs_sim::CudaGpus::of(library_, *driver_);
  }

  const DirectModel& model() const { return model_; }
  const std::string& library() const { return library_; }
  const cuda::Driver& driver() const { return *driver_; }
  verbs_sim::CudaGpus& gpus() { return *gpus_; }
  // The size from which transfers are direct is set: ranks would measure it.
  std::string settings() const {
    return cat("RDMACOLL_TRANSPORT=rdma\nRDMACOLL_ACC_SIZE=16384\nRDMACOLL_CUDA_LIBRARY=", library_,
               "\nRDMACOLL_NVML_LIBRARY=", library_, "\n");
  }
  // The machine of a host, whose NIC is on the fabric.
  SessionMachine host(verbs_sim::ThreadedFabric& fabric, int number) {
    verbs_sim::AdapterModel adapter = verbs_sim::ethernet(number);
    adapter.facts.name = model_.nic;
    adapter.has_peer_memory = *model_.modules != '\0';
    adapter.takes_dma_bufs = model_.has_dma_buf;
    rdma::Verbs& verbs = fabric.add_host({adapter}, gpus_);
    SessionMachine machine{
        .transports = transport_table(), .sys = sys_.path(), .proc = proc_.path()};
    for (TransportRow& row : machine.transports) {
      if (row.name != "rdma") continue;
      row.make = [&verbs] { return std::make_unique<RdmaProvider>(&verbs, rdma::MemoryLimit{}); };
    }
    return machine;
  }

 private:
  const DirectModel& model_;
  const cuda::PciTreeFolder sys_;
  const cuda::PciTreeFolder proc_;
  std::string library_;
  const cuda::Driver* driver_ = nullptr;
  verbs_sim::CudaGpus* gpus_ = nullptr;
};

}  // namespace rdmacoll
