// Messages for failures of the verbs: the event, the values, and the cure. Pure, so tests can check
// each message without the machine that would provoke it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "transport/rdma/facts.h"

namespace rdmacoll::rdma {

Status library_missing(const std::string& cause);

struct KernelView {
  std::vector<std::string> devices;       // in /sys/class/infiniband
  bool has_verbs_class = false;           // /sys/class/infiniband_verbs: ib_uverbs is loaded
  std::vector<std::string> device_files;  // /dev/infiniband/uverbs*
};
// For an empty list of devices. Returns success if the machine has no RDMA device.
Status nothing_listed(const KernelView& kernel);

// Continues a device's name: "cannot be opened: ..."
std::string not_opened(int error);

struct MemoryLimit {
  std::optional<uint64_t> allowed;  // RLIMIT_MEMLOCK; none: unlimited
  uint64_t pinned = 0;              // by this process already
};
// Reads the limit of this process. A process with CAP_IPC_LOCK has none.
MemoryLimit memory_limit();
// A pool, whose size `pool` says, would pin `need` bytes. `cure_by_size` names another possible
// cure.
std::string pool_too_large(const std::string& pool, uint64_t need, const MemoryLimit& limit,
                           const std::string& cure_by_size);
// Rank `who` may pin less than the default pool needs, so all ranks take a pool of `pool` bytes.
std::string pool_shrunk(const std::string& who, uint64_t pool, uint64_t default_pool);
Status not_registered(const std::string& device, uint64_t bytes, int error,
                      const MemoryLimit& limit);

Status gpu_memory_not_registered(const std::string& device, uint64_t bytes, int error);
Status dma_buf_not_registered(const std::string& device, uint64_t bytes, int error);

// For the change from INIT to ready, in which the kernel resolves the path to the other end.
Status no_path(const std::string& device, int port, const Gid& local, const Gid& remote,
               uint16_t remote_lid, int error);

}  // namespace rdmacoll::rdma
