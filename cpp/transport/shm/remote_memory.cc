#include "transport/shm/remote_memory.h"

#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/text.h"

namespace rdmacoll::shm {
namespace {

// The most pieces that one call gathers. The kernel allows 1,024 (IOV_MAX). The array is on the
// stack of a compute worker, and more pieces save little time.
constexpr std::size_t kGatherMax = 128;
// The kernel limits one call to 2 GiB less a page.
constexpr std::size_t kCallBytesMax = std::size_t{1} << 30;

ssize_t read_process(int64_t pid, const iovec& local, std::span<const iovec> remote) {
  ssize_t got = 0;
  do {
    got = ::process_vm_readv(static_cast<pid_t>(pid), &local, 1, remote.data(), remote.size(), 0);
  } while (got < 0 && errno == EINTR);
  return got;
}

iovec as_iovec(uint64_t address, std::size_t bytes) {
  return {reinterpret_cast<void*>(address), bytes};
}

}  // namespace

Status RemoteMemory::map_pool(Fd pool, uint64_t base, uint64_t bytes) {
  RC_RETURN_IF_ERROR(check_shared(pool.get(), bytes));
  PoolMapping mapping;
  RC_RETURN_IF_ERROR(rdmacoll::map_pool(pool.get(), bytes, mapping));
  pool_ = std::make_shared<const PoolMapping>(std::move(mapping));
  pool_base_ = base;
  return {};
}

bool RemoteMemory::probe(std::span<const int64_t> pids, uint64_t address, uint64_t value) {
  for (const int64_t pid : pids) {
    if (pid <= 0) continue;
    uint64_t seen = ~value;
    const iovec local{&seen, sizeof seen};
    const iovec remote = as_iovec(address, sizeof seen);
    if (read_process(pid, local, {&remote, 1}) != sizeof seen || seen != value) continue;
    pid_ = pid;
    return true;
  }
  return false;
}

Status RemoteMemory::locate(const PieceRecord& record, RemotePiece& piece) const {
  const uint64_t bytes = record.bytes & ~(kInPool | kOnGpu);
  if (bytes > kTransferBytesMax) {
    return Status(Code::failed, cat("published a piece of ", bytes, " bytes"));
  }
  if ((record.bytes & kInPool) != 0) {
    if (record.address > pool_->shared.bytes() || bytes > pool_->shared.bytes() - record.address) {
      return Status(Code::failed, cat("published ", bytes, " bytes at ", record.address,
                                      " of a pool of ", pool_->shared.bytes()));
    }
    piece = {pool_->shared.data() + record.address, pool_base_ + record.address, bytes};
    return {};
  }
  if ((record.bytes & kOnGpu) != 0) return locate_on_gpu(record.address, bytes, piece);
  if (!one_copy_) return Status(Code::failed, "published memory that we may not read");
  piece = {nullptr, record.address, bytes};
  return {};
}

Status RemoteMemory::locate_on_gpu(uint64_t address, uint64_t bytes, RemotePiece& piece) const {
  for (const OnGpu& memory : on_gpus_) {
    if (address < memory.begin || address - memory.begin > memory.bytes) continue;
    const uint64_t offset = address - memory.begin;
    if (bytes > memory.bytes - offset) continue;
    piece = {memory.mapped + offset, address, bytes, memory.gpu};
    return {};
  }
  return Status(Code::failed,
                cat("published ", bytes, " bytes on a GPU that are not in the memory it offered"));
}

Status RemoteMemory::read(std::span<const RemotePiece> from, std::size_t skip, std::byte* into,
                          std::size_t bytes) const {
  while (bytes > 0) {
    while (!from.empty() && skip >= from.front().bytes) {
      skip -= from.front().bytes;
      from = from.subspan(1);
    }
    RC_ASSERT(!from.empty(), cat(bytes, " bytes beyond the end of a view"));
    std::size_t now = 0;
    if (const RemotePiece& piece = from.front(); piece.mapped != nullptr) {
      now = std::min(piece.bytes - skip, bytes);
      std::memcpy(into, piece.mapped + skip, now);
    } else {
      // One call reads a run of unmapped pieces.
      const std::size_t wanted = std::min(bytes, kCallBytesMax);
      std::size_t run = 0;
      std::size_t run_bytes = 0;
      while (run < from.size() && run < kGatherMax && from[run].mapped == nullptr &&
             run_bytes < skip + wanted) {
        run_bytes += from[run++].bytes;
      }
      now = std::min(run_bytes - skip, wanted);
      RC_RETURN_IF_ERROR(read_vector(from.first(run), skip, into, now));
    }
    skip += now;
    into += now;
    bytes -= now;
  }
  return {};
}

Status RemoteMemory::read_vector(std::span<const RemotePiece> from, std::size_t skip,
                                 std::byte* into, std::size_t bytes) const {
  while (bytes > 0) {
    if (gone_.load(std::memory_order_relaxed)) return failed(ESRCH);
    std::array<iovec, kGatherMax> remote;
    std::size_t pieces = 0;
    std::size_t gathered = 0;
    std::size_t rest = skip;
    for (const RemotePiece& piece : from) {
      if (rest >= piece.bytes) {
        rest -= piece.bytes;
        continue;
      }
      const std::size_t take = std::min(piece.bytes - rest, bytes - gathered);
      if (take == 0) break;
      remote[pieces++] = as_iovec(piece.address + rest, take);
      gathered += take;
      rest = 0;
    }
    const iovec local{into, gathered};
    const ssize_t got = read_process(pid_, local, std::span(remote).first(pieces));
    if (got < 0) return failed(errno);
    if (got == 0) return failed(EFAULT);
    // A short read met an unreadable page or the call's limit. The next round continues, or returns
    // the error.
    skip += static_cast<std::size_t>(got);
    into += got;
    bytes -= static_cast<std::size_t>(got);
  }
  return {};
}

Status RemoteMemory::failed(int error) const {
  const std::string cause = error == ESRCH    ? "it ended while its memory was read"
                            : error == EFAULT ? "the memory that it published is not there"
                                              : cat("process_vm_readv: ", std::strerror(error));
  return {Code::rank_failed, cause, {.rank = JobRank(rank_), .cause = cause}};
}

}  // namespace rdmacoll::shm
