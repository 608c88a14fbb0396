// The GPUs and NICs of this machine, and the decision for each pair of them.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "base/gpudirect.h"
#include "cuda/driver.h"
#include "cuda/nvml.h"
#include "cuda/policy.h"
#include "cuda/topology.h"

namespace rdmacoll::cuda {

// The places to look at. Tests give recorded trees and libraries of their own.
struct SystemRoots {
  std::string sys = "/sys";
  std::string proc = "/proc";
  std::string cuda_library = "libcuda.so.1";
  std::string nvml_library = "libnvidia-ml.so.1";
  std::string gdrcopy_library = {};  // "": it is not looked for
};

struct SystemGpu {
  GpuProfile profile;
  PciPlace place;
};

struct GpuSystem {
  std::string driver_version;  // "470.256.02"; "": not known
  std::string cuda_problem;    // why the CUDA driver tells nothing; "": it does
  std::string nvml_problem;
  std::string gdrcopy_version;     // "2.4"; "": GDRCopy is not there, or cannot be used
  std::string gdrcopy_problem;     // why not; "": it can be used, or it is not looked for
  std::string module_name;         // the loaded peer-memory module; "": none, or not known
  Known is_open = Known::unknown;  // NVIDIA's kernel modules are the open ones
  int kernel_major = 0;
  int kernel_minor = 0;
  int numa_nodes = 0;
  HostFacts host;
  std::vector<SystemGpu> gpus;  // by PCIe address
  std::vector<NicPlace> nics;   // by name
};

// Whether NVIDIA's kernel modules are loaded. Without them no process uses a GPU. Looks at two
// files.
bool has_gpu_driver(const SystemRoots& roots);

// Reads all facts. The CUDA driver is asked only if there is a GPU, and makes no context.
GpuSystem read_gpu_system(const SystemRoots& roots);
// The same, but without the facts of the CUDA driver, which is not opened.
GpuSystem read_gpu_system_without_cuda(const SystemRoots& roots);

// The parts of it: each adds its facts to the GPUs that are there, and GPUs that it knows alone.
void add_nvml_facts(const NvmlFacts& nvml, std::vector<SystemGpu>& gpus);
Status add_cuda_facts(const Driver& driver, std::vector<SystemGpu>& gpus);

// One pair of a GPU and a NIC, by their places in the system.
struct Cell {
  std::size_t gpu = 0;
  std::size_t nic = 0;
  PciWay way;
  Decision decision;
};

// Pure. GPU by GPU, and NIC by NIC. `used`: the names of the NICs that a job uses, which alone are
// decided then. Empty: a job may use any of them, so a forced way that one NIC has is no error at
// the others.
std::vector<Cell> decide_all(const GpuSystem& system, const GpuDirectSetting& setting,
                             std::span<const std::string> used = {});

// The warnings of direct ways that are expected and lost: at most one for each GPU.
std::vector<std::string> warnings_of(const GpuSystem& system, const std::vector<Cell>& cells);

}  // namespace rdmacoll::cuda
