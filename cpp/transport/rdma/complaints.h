// What failures of the verbs say: what happened, the values, and the cure. Pure, so that each
// sentence can be tested without the machine that would provoke it.
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
// The library lists nothing. Ok when that is so because there is nothing.
Status nothing_listed(const KernelView& kernel);

// As the words after a device's name: "cannot be opened: ..."
std::string not_opened(int error);

struct MemoryLimit {
  std::optional<uint64_t> allowed;  // RLIMIT_MEMLOCK; none: unlimited
  uint64_t pinned = 0;              // by this process already
};
// Of this process, which has none with CAP_IPC_LOCK.
MemoryLimit memory_limit();
// `need` bytes would be pinned for a pool of `pool` bytes; `cure_by_size` is what else may help.
std::string pool_too_large(uint64_t pool, uint64_t need, const MemoryLimit& limit,
                           const std::string& cure_by_size);
// `who` may pin less than the default pool needs, so that all take one of `pool` bytes.
std::string pool_shrunk(const std::string& who, uint64_t pool, uint64_t default_pool);
Status not_registered(const std::string& device, uint64_t bytes, int error,
                      const MemoryLimit& limit);

// From INIT to ready: the kernel looks the way to the other end up.
Status no_path(const std::string& device, int port, const Gid& local, const Gid& remote,
               uint16_t remote_lid, int error);

}  // namespace rdmacoll::rdma
