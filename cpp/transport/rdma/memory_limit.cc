// Reads how much memory this process may pin.
#include <sys/resource.h>

#include <fstream>

#include "transport/rdma/error_texts.h"

namespace rdmacoll::rdma {
namespace {

constexpr int kIpcLock = 14;  // the bit of CAP_IPC_LOCK

// The kernel checks the capability in its first user namespace, so a container's own root lacks it.
bool is_first_user_namespace() {
  uint64_t inside = 0, outside = 0, length = 0;
  std::ifstream map("/proc/self/uid_map");
  return map >> inside >> outside >> length && inside == 0 && outside == 0 && length == UINT32_MAX;
}

}  // namespace

MemoryLimit memory_limit() {
  MemoryLimit limit;
  rlimit now{};
  if (::getrlimit(RLIMIT_MEMLOCK, &now) == 0 && now.rlim_cur != RLIM_INFINITY) {
    limit.allowed = now.rlim_cur;
  }
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    if (word == "VmPin:") {
      uint64_t kibibytes = 0;
      if (status >> kibibytes) limit.pinned = kibibytes * 1024;
    } else if (word == "CapEff:") {
      uint64_t capabilities = 0;
      if (!(status >> std::hex >> capabilities >> std::dec)) break;
      if ((capabilities >> kIpcLock & 1) != 0 && is_first_user_namespace()) limit.allowed.reset();
    }
  }
  return limit;
}

}  // namespace rdmacoll::rdma
