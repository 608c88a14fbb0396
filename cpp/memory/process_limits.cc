#include "memory/process_limits.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>

#include "base/cgroup.h"
#include "base/text.h"

namespace rdmacoll {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr uint64_t kPoolBytesMin = 16 * kMiB;  // the least value of RDMACOLL_BUF_SIZE
// A pool is mapped twice: for writing, and as callers see it (private_view.h).
constexpr uint64_t kMappings = 2;
// Pools may take one half of the remaining address space: threads, rings and TensorFlow need the
// rest.
constexpr uint64_t kAddressShare = 2;
// A rank's pool may take one quarter of its cgroup's memory.
constexpr uint64_t kGroupShare = 4;

uint64_t left_of(const ProcessLimits& limits) {
  return *limits.address_limit - std::min(limits.address_used, *limits.address_limit);
}

std::string raise_address_limit() {
  return "raise it by `ulimit -v unlimited` in the script that starts the ranks (Slurm: "
         "VSizeFactor=0 in slurm.conf)";
}

Status refuse(const PoolRequest& request, uint64_t smallest, const std::string& why,
              const std::string& cure) {
  const std::string pool =
      request.is_given
          ? cat("RDMACOLL_BUF_SIZE (TF_RDMA_BUF_SIZE) asks for ", bytes_text(request.bytes))
          : cat("the smallest buffer pool has ", bytes_text(kPoolBytesMin));
  const std::string lower =
      request.is_given && smallest >= kPoolBytesMin
          ? cat("Lower RDMACOLL_BUF_SIZE to ", bytes_text(smallest), ", leave it unset, or ")
          : "To have it, ";
  return {Code::invalid, cat(pool, ", and ", why, ". ", lower, cure, ".")};
}

}  // namespace

ProcessLimits process_limits(const std::string& root) {
  ProcessLimits limits;
  rlimit address{};
  if (::getrlimit(RLIMIT_AS, &address) == 0 && address.rlim_cur != RLIM_INFINITY) {
    limits.address_limit = address.rlim_cur;
  }
  uint64_t pages = 0;
  if (std::ifstream(root + "/proc/self/statm") >> pages) {
    limits.address_used = pages * static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
  }
  if (const auto limit = group_limit("memory", "memory.max", "memory.limit_in_bytes", root)) {
    limits.group_limit = limit->value;
    limits.group_file = limit->file;
  }
  return limits;
}

Status fit_pool(const PoolRequest& request, const ProcessLimits& limits, uint64_t& bytes,
                std::string& note) {
  bytes = request.bytes;
  const auto lower = [&](uint64_t fitting, const std::string& why, const std::string& cure) {
    fitting = fitting / kMiB * kMiB;
    if (request.is_given || fitting < kPoolBytesMin) return refuse(request, fitting, why, cure);
    bytes = fitting;
    note = cat("the buffer pool has ", bytes_text(bytes), " instead of ", bytes_text(request.bytes),
               ", since ", why, "; ", cure, ", or set RDMACOLL_BUF_SIZE (TF_RDMA_BUF_SIZE)");
    return Status();
  };
  const auto ranks = static_cast<uint64_t>(std::max(1, request.ranks));
  if (limits.address_limit) {
    const uint64_t left = left_of(limits);
    // The real number of ranks on the node is known only later. A size that the user set is refused
    // only if not even one pool fits.
    const uint64_t needed = kMappings * bytes * (request.is_given ? 1 : ranks * kAddressShare);
    if (needed > left) {
      RC_RETURN_IF_ERROR(lower(left / kAddressShare / kMappings / ranks,
                               cat("this process may map ", bytes_text(left / kMiB * kMiB),
                                   " more (RLIMIT_AS is ", bytes_text(*limits.address_limit),
                                   "), where a rank maps the pools of its node twice"),
                               raise_address_limit()));
    }
  }
  if (limits.group_limit && bytes > *limits.group_limit) {
    RC_RETURN_IF_ERROR(lower(*limits.group_limit / kGroupShare,
                             cat("all processes of this container or job step may use ",
                                 bytes_text(*limits.group_limit), " (", limits.group_file, ")"),
                             "give it more memory (docker run --memory, srun --mem)"));
  }
  return {};
}

Status check_mappings(uint64_t pool_bytes, int peers, const ProcessLimits& limits) {
  if (!limits.address_limit || peers <= 0) return {};
  const uint64_t left = left_of(limits);
  const uint64_t needed = kMappings * pool_bytes * static_cast<uint64_t>(peers);
  if (needed <= left) return {};
  return {
      Code::invalid,
      cat("the buffer pools of the ", peers, " other ranks of this node (", bytes_text(pool_bytes),
          " each, mapped twice) need ", bytes_text(needed), " of address space, and ",
          bytes_text(left / kMiB * kMiB), " are left (RLIMIT_AS is ",
          bytes_text(*limits.address_limit), "). Lower RDMACOLL_BUF_SIZE (TF_RDMA_BUF_SIZE) to ",
          bytes_text(std::max(left / kAddressShare / kMappings / static_cast<uint64_t>(peers),
                              kPoolBytesMin) /
                     kMiB * kMiB),
          " on all ranks, or ", raise_address_limit(), ".")};
}

}  // namespace rdmacoll
