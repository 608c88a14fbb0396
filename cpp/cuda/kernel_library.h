// The device kernels of the library, and how a ComputeJob becomes one launch of one of them.
#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "compute/compute.h"
#include "compute/job.h"
#include "cuda/kernels/parameters.h"

namespace rdmacoll::cuda {

// One module with one function of the same name. The driver compiles the PTX on first use.
struct Kernel {
  std::string_view name;
  const char* ptx;  // ends with a zero byte, for cuModuleLoadData
};

// All kernels. A launch names one by its index here.
std::span<const Kernel> kernels();
// The kernels of jobs that copy.
std::array<int, 2> copy_kernels();
// The kernel write_word, whose argument is WriteWordParameters. It runs in one thread.
int write_word_kernel();

// Finds the address by which the GPU accesses memory. Pinned host memory may have another one
// there.
class DeviceAddresses {
 public:
  virtual ~DeviceAddresses() = default;
  virtual Word of(const std::byte* memory) const = 0;
};

// Blocks of a large launch on each multiprocessor (docs/measurements).
inline constexpr unsigned kBlocksOfMultiprocessor = 32;

// cuLaunchKernel(kernels()[kernel], blocks, 1, 1, kThreads, 1, 1, 0, stream, {&parameters}).
struct Launch {
  int kernel = 0;
  unsigned blocks = 0;  // 0: the job is empty, and there is nothing to launch
  ReduceParameters parameters;
  // Rows that do not fit into the parameters, else empty. Copy them to memory that the device
  // reads, set parameters.table to its address, and keep it until the launch has ended.
  std::vector<Word> table;
};

// Turns jobs into launches on one GPU. Not thread-safe. After the largest job it allocates nothing.
class LaunchPlanner {
 public:
  // `addresses` may be null if the GPU has all memory at the addresses of the process.
  LaunchPlanner(unsigned multiprocessors, const DeviceAddresses* addresses)
      : blocks_max_(multiprocessors * kBlocksOfMultiprocessor), addresses_(addresses) {}

  // Prepares the launch of a job that measure() accepts. The GPU must be able to access all memory
  // of the job: local pieces, and pieces of peers that are mapped. `launch` may be used again.
  // Fails if a piece ends inside an element, or if there are more than kSourcesMax sources.
  Status prepare(const ComputeJob& job, Launch& launch);

 private:
  class Rows;

  const unsigned blocks_max_;
  const DeviceAddresses* const addresses_;
  std::vector<PieceCursor> cursors_;  // first the destination, then the sources
};

}  // namespace rdmacoll::cuda
