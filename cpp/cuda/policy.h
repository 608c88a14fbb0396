// Decides whether a NIC reads and writes the memory of a GPU itself. Pure: facts in, decision and
// sentences out.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/gpudirect.h"
#include "base/status.h"
#include "cuda/topology.h"
#include "memory/gpu_memory_facts.h"

namespace rdmacoll::cuda {

struct GpuProfile {
  std::string name;  // "Tesla K80"
  std::string uuid;  // "GPU-5c1f..."
  std::string address;
  int capability = 0;  // 37 is 3.7; 0: not known
  uint64_t memory_bytes = 0;
  std::optional<uint64_t> bar1_bytes;  // the window through which devices reach the memory
  std::optional<uint64_t> bar1_free;
  int compute_mode = -1;  // as the driver numbers it; -1: not known
  bool is_mig = false;    // divided into instances
  bool has_nvlink = false;
  Known gpudirect = Known::unknown;    // the driver's attribute: GPUDirect RDMA is supported
  Known dma_buf = Known::unknown;      // the driver's attribute: memory is exported as dma-buf
  std::optional<int> writes_ordering;  // the driver's attribute: 0, 100 (owner) or 200 (all)
  std::optional<int> flush_options;    // the driver's attribute: bit 0 is a call of the driver
};

// The ways in which a NIC's driver registers GPU memory.
struct NicAbility {
  Known peer_memory = Known::unknown;
  Known dma_buf = Known::unknown;
};
// Guesses what a NIC can do from the name of its kernel driver and the kernel's version. A probe of
// the device, if there is one, overrides the guess.
NicAbility ability_of(std::string_view driver, int kernel_major, int kernel_minor);

struct HostFacts {
  bool sys_is_readable = true;
  Known peer_module = Known::unknown;
  int driver_major = 0;  // the version of NVIDIA's driver: 470; 0: not known
};

// All that decides about one GPU and one NIC.
struct PolicyFacts {
  GpuProfile gpu;
  std::string nic;  // "mlx5_0"
  bool nic_is_software = false;
  NicAbility ability;
  PciWay way;
  HostFacts host;
  uint64_t registered_bytes = 256 << 20;  // to be registered, which needs as much of BAR1
  GpuDirectSetting setting;
  std::string nearer_nic;  // a usable NIC that is nearer to this GPU; "": there is none
  bool is_used = false;    // the job sends through this NIC, even if another one is nearer
};

// The bytes of BAR1 that registrations may take. Empty: not known.
std::optional<uint64_t> usable_bar1(const GpuProfile& gpu);

// The flush by the driver's attributes, and by the capability if they are not known.
WriteFlush write_flush_of(int capability, std::optional<int> writes_ordering,
                          std::optional<int> flush_options);

enum class Way : uint8_t { staged, peer_memory, dma_buf };
std::string_view text(Way way);  // "staged"

// Why data is staged.
enum class Cause : uint8_t {
  none,
  // A direct way is expected, and lost. Each of these is a warning.
  module_missing,
  bar1_too_small,
  far_socket,
  acs,
  iommu,
  no_sys,
  mig,
  old_driver,
  no_dma_buf,
  turned_off,
  nic_unsupported,
  flat_tree,
  unknown_distance,
  bar1_unknown,
  // Nothing is lost.
  software_nic,
  gpu_unsupported,
  slow_reads,
  no_shared_switch,
};
std::string_view text(Cause cause);  // "module_missing"

struct DirectionDecision {
  Way way = Way::staged;
  Cause cause = Cause::none;
  std::string why;  // "nvidia_peermem is not loaded", or for a direct way "same PCIe switch"
  std::string change = {};  // an imperative that would make it direct; "": there is none
  bool is_loss = false;     // a direct way is expected, and not used

  // "staged through pinned host memory, because nvidia_peermem is not loaded"
  std::string reason() const;
};

std::string_view text(WriteFlush flush);  // "driver"

struct Decision {
  DirectionDecision send;               // the NIC reads GPU memory
  DirectionDecision receive;            // the NIC writes GPU memory
  WriteFlush flush = WriteFlush::none;  // after a direct receive
  std::string warning;                  // cause and cure of a lost direct way; "": nothing is lost
  Status status;                        // an error if the setting forces a way that is not there
};

Decision decide(const PolicyFacts& facts);

}  // namespace rdmacoll::cuda
