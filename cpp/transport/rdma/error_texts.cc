#include "transport/rdma/error_texts.h"

#include <cerrno>

#include "base/system_error.h"
#include "base/text.h"

namespace rdmacoll::rdma {
namespace {

constexpr std::string_view kRaiseLimit =
    "`ulimit -l unlimited` raises it for a shell, \"* - memlock unlimited\" in "
    "/etc/security/limits.d/rdma.conf for all logins, --ulimit memlock=-1 for a container, "
    "LimitMEMLOCK=infinity for a service";

bool is_memory_error(int error) { return error == ENOMEM || error == EPERM || error == EAGAIN; }

}  // namespace

Status library_missing(const std::string& cause) {
  return {Code::failed,
          cat("RDMA needs the library libibverbs, which cannot be loaded (", cause,
              "): install libibverbs1 and ibverbs-providers (Debian, Ubuntu) or rdma-core and "
              "libibverbs (Red Hat, SUSE).")};
}

Status nothing_listed(const KernelView& kernel) {
  if (kernel.devices.empty() && kernel.has_verbs_class) return {};
  if (kernel.devices.empty()) {
    return {
        Code::failed,
        "the kernel has no RDMA devices, and its module ib_uverbs is not loaded: where there is "
        "an adapter, load both (modprobe ib_uverbs; modprobe mlx5_ib)."};
  }
  const std::string names = join(kernel.devices, ", ");
  if (!kernel.has_verbs_class) {
    return {Code::failed, cat("the kernel has ", names,
                              ", but no program can use it, since the module ib_uverbs is not "
                              "loaded: modprobe ib_uverbs.")};
  }
  if (kernel.device_files.empty()) {
    return {Code::failed,
            cat("the kernel has ", names,
                ", but /dev/infiniband/uverbs* is missing here: give the container the devices "
                "(--device=/dev/infiniband), or outside of one let udev make them (modprobe "
                "ib_uverbs).")};
  }
  return {Code::failed,
          cat("the kernel has ", names, " and ", join(kernel.device_files, ", "),
              ", but libibverbs has no driver for it: install ibverbs-providers (Debian, Ubuntu) "
              "or libibverbs of the adapter's vendor.")};
}

std::string not_opened(int error) {
  const std::string what = cat("cannot be opened: ", error_text(error));
  if (error == EACCES || error == EPERM) {
    return cat(what, ", so let this user read and write /dev/infiniband/uverbs*");
  }
  return what;
}

Status not_registered(const std::string& device, uint64_t bytes, int error,
                      const MemoryLimit& limit) {
  const std::string what = cat("registering ", bytes_text(bytes), " of memory on ", device,
                               " failed: ", error_text(error));
  const bool is_over = limit.allowed && bytes + limit.pinned > *limit.allowed;
  if (is_memory_error(error) && is_over) {
    return {Code::failed, cat(what, "; the limit on pinned memory (RLIMIT_MEMLOCK) is ",
                              bytes_text(*limit.allowed), ", ", bytes_text(limit.pinned),
                              " of it are in use, and ", bytes_text(bytes + limit.pinned),
                              " are needed: ", kRaiseLimit, "; or lower RDMACOLL_BUF_SIZE.")};
  }
  if (is_memory_error(error)) {
    // The kernel also counts memory that other processes of the user have pinned, which is not
    // visible here.
    const std::string have = limit.allowed ? bytes_text(*limit.allowed) : "unlimited";
    return {Code::failed,
            cat(what, "; the limit on pinned memory (RLIMIT_MEMLOCK) is ", have, " and ",
                bytes_text(limit.pinned),
                " are in use by this process, so the machine or the device has no more: lower "
                "RDMACOLL_BUF_SIZE, or end other programs that pin memory",
                limit.allowed ? cat("; or raise the limit: ", kRaiseLimit) : "", ".")};
  }
  return {Code::failed, cat(what,
                            ". Is the memory mapped for writing, and plain memory of this "
                            "process?")};
}

Status gpu_memory_not_registered(const std::string& device, uint64_t bytes, int error) {
  // The kernel takes the address for one of the process if no module knows it.
  const char* cure = error == EFAULT || error == EINVAL
                         ? "Load the peer-memory module (modprobe nvidia_peermem), which needs an "
                           "InfiniBand stack with peer-memory clients."
                         : "The BAR1 of the GPU may be full: end other programs that register it.";
  return {Code::failed, cat(device, " does not register ", bytes_text(bytes),
                            " of GPU memory: ", error_text(error), ". ", cure)};
}

Status dma_buf_not_registered(const std::string& device, uint64_t bytes, int error) {
  return {Code::failed, cat(device, " does not register a dma-buf of ", bytes_text(bytes), ": ",
                            error_text(error), ".")};
}

std::string pool_too_large(const std::string& pool, uint64_t need, const MemoryLimit& limit,
                           const std::string& cure_by_size) {
  RC_ASSERT(limit.allowed.has_value());
  const std::string used =
      limit.pinned > 0 ? cat(", ", bytes_text(limit.pinned), " of it are in use") : "";
  return cat("a buffer pool of ", pool, " needs ", bytes_text(need),
             " of pinned memory, and the limit (RLIMIT_MEMLOCK) is ", bytes_text(*limit.allowed),
             used, ": ", kRaiseLimit, cure_by_size, ".");
}

std::string pool_shrunk(const std::string& who, uint64_t pool, uint64_t default_pool) {
  return cat("the buffer pool has ", bytes_text(pool), " instead of ", bytes_text(default_pool),
             ", since ", who, " may pin no more memory (RLIMIT_MEMLOCK): ", kRaiseLimit,
             "; or set TF_RDMA_BUF_SIZE.");
}

Status no_path(const std::string& device, int port, const Gid& local, const Gid& remote,
               uint16_t remote_lid, int error) {
  if (remote_lid != 0) {
    return {Code::failed,
            cat("the way from ", device, " port ", port, " to LID ", remote_lid, " (GID ",
                remote.text(), ") cannot be set up: ", error_text(error),
                ". Are both in one subnet, with PKEY and MTU alike? ibv_devinfo -v shows them.")};
  }
  return {Code::failed,
          cat("the way from ", device, " port ", port, " (GID ", local.text(), ") to GID ",
              remote.text(), " cannot be set up: ", error_text(error),
              ". Its address must answer a ping from the interface of ", device,
              "; if the machines have no network in common there, name other devices by "
              "RDMACOLL_DEVICE.")};
}

}  // namespace rdmacoll::rdma
