#include "cuda/work_memory.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <optional>
#include <random>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "base/text.h"
#include "memory/placement.h"

namespace rdmacoll::cuda {
namespace {

// The first slab is small. A larger one is added for larger batches, until all slabs have this
// share of the GPU's memory.
constexpr uint64_t kFirstSlabBytes = uint64_t{64} << 20;
constexpr uint64_t kShareOfGpu = 16;
constexpr uint64_t kSlabUnit = uint64_t{2} << 20;
// Kernels read and write 16 bytes at once, and copies lines of 128.
constexpr uint64_t kAlignment = 256;

uint64_t number_of_process() {
  static const uint64_t kNumber = [] {
    std::random_device device;
    return (uint64_t{device()} << 32) | device();
  }();
  return kNumber;
}

// How long the end of this rank waits for others that may have its slabs open.
constexpr Nanoseconds kEndsLimit = 2 * kSecond;
constexpr int kLookMilliseconds = 20;

// Whether the other side of a socket has ended. Bytes that it has sent before are dropped.
bool has_hung_up(int socket) {
  std::array<std::byte, 256> dropped;
  ssize_t got = 0;
  do {
    got = ::recv(socket, dropped.data(), dropped.size(), MSG_DONTWAIT);
  } while (got > 0);
  return got == 0 || (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR);
}

}  // namespace

WorkMemory::~WorkMemory() {
  const Driver& driver = gpus_->driver();
  if (driver.is_forked_child()) return;
  while (!opened_.empty()) close(opened_.begin()->first);
  await_ends();
  for (const auto& [gpu, memory] : memory_) {
    const ScopedContext scope(*gpus_, gpu);
    if (memory.slabs.empty() || !scope.status().ok()) continue;
    if (readers_ > 0) {
      log_.warning(cat(bytes_text(memory.bytes), " of ", gpus_->facts(gpu).text(),
                       " stay allocated until this process ends: another rank may still read them, "
                       "since it did not answer. End that rank, then this process."));
      continue;
    }
    for (const Slab& slab : memory.slabs) driver.call.cuMemFree_v2(slab.description.begin);
  }
}

// A world that has failed has no farewells. Its ranks end at about the same time.
void WorkMemory::await_ends() {
  const SteadyClock clock;
  const Nanoseconds end = clock.now() + kEndsLimit;
  for (const EndingPeer& peer : ending_) {
    bool has_ended = has_hung_up(peer.socket.get());
    while (!has_ended && clock.now() < end) {
      pollfd look{.fd = peer.socket.get(), .events = POLLIN, .revents = 0};
      ::poll(&look, 1, kLookMilliseconds);
      has_ended = has_hung_up(peer.socket.get());
    }
    if (has_ended) readers_ -= peer.readers;
  }
}

uint64_t WorkMemory::bytes_max(Gpu gpu) const {
  return std::max(kFirstSlabBytes, gpus_->facts(gpu).bytes / kShareOfGpu);
}

int WorkMemory::prepare(Gpu gpu, uint64_t bytes) {
  const GpuSums::State state = sums_.prepare(gpu);
  if (state == GpuSums::State::preparing) return 0;
  OfGpu& memory = memory_[gpu];
  const auto suffices = [bytes](const Slab& slab) { return slab.description.bytes >= bytes; };
  if (!memory.is_full && std::none_of(memory.slabs.begin(), memory.slabs.end(), suffices)) {
    const uint64_t wanted = round_up(std::max(bytes, kFirstSlabBytes), kSlabUnit);
    const uint64_t left = bytes_max(gpu) - memory.bytes;
    memory.is_full = wanted >= left;
    const Status status =
        state == GpuSums::State::refused
            ? sums_.refusal(gpu)
            : add_slab(gpu, memory, std::min(wanted, left / kSlabUnit * kSlabUnit));
    memory.is_full = memory.is_full || !status.ok();
    if (!status.ok() && memory.slabs.empty()) {
      log_.warning(cat("Arrays on ", gpus_->facts(gpu).text(),
                       " go through host memory within a node: ", status.message()));
    }
  }
  return static_cast<int>(memory.slabs.size());
}

Status WorkMemory::add_slab(Gpu gpu, OfGpu& memory, uint64_t bytes) {
  if (bytes == 0) return {};
  const Driver& driver = gpus_->driver();
  const ScopedContext scope(*gpus_, gpu);
  RC_RETURN_IF_ERROR(scope.status());
  Address address = 0;
  RC_RETURN_IF_ERROR(driver.check(driver.call.cuMemAlloc_v2(&address, bytes),
                                  cat("cuMemAlloc of ", bytes_text(bytes))));
  Slab slab{.free = FreeExtents(bytes)};
  slab.description.begin = address;
  slab.description.bytes = bytes;
  const Status status = describe(gpu, slab.description);
  if (!status.ok()) {
    driver.call.cuMemFree_v2(address);
    return status;
  }
  memory.slabs.push_back(std::move(slab));
  memory.bytes += bytes;
  return {};
}

Status WorkMemory::describe(Gpu gpu, GpuSlab& slab) const {
  const Driver& driver = gpus_->driver();
  MemoryHandle handle{};
  RC_RETURN_IF_ERROR(
      driver.check(driver.call.cuIpcGetMemHandle(&handle, slab.begin), "cuIpcGetMemHandle"));
  std::memcpy(slab.handle.data(), handle.bytes, sizeof handle.bytes);
  const std::string& uuid = gpus_->facts(gpu).uuid;
  std::memcpy(slab.uuid.data(), uuid.data(), std::min(uuid.size(), slab.uuid.size() - 1));
  slab.process = number_of_process();
  return {};
}

void WorkMemory::enable(Gpu gpu) {
  for (Slab& slab : memory_.at(gpu).slabs) slab.is_enabled = true;
}

std::byte* WorkMemory::allocate(Gpu gpu, uint64_t bytes) {
  const uint64_t wanted = round_up(std::max<uint64_t>(bytes, 1), kAlignment);
  for (Slab& slab : memory_.at(gpu).slabs) {
    std::byte* const memory = slab.is_enabled ? take(slab, wanted) : nullptr;
    if (memory != nullptr) return memory;
  }
  return nullptr;
}

std::byte* WorkMemory::take(Slab& slab, uint64_t bytes) {
  const std::optional<std::size_t> offset = slab.free.take(bytes, kAlignment);
  if (!offset) return nullptr;
  slab.live[*offset] = bytes;
  return reinterpret_cast<std::byte*>(slab.description.begin + *offset);
}

void WorkMemory::free(Gpu gpu, std::byte* memory) {
  const auto address = reinterpret_cast<uint64_t>(memory);
  for (Slab& slab : memory_.at(gpu).slabs) {
    const uint64_t begin = slab.description.begin;
    if (address >= begin && address - begin < slab.description.bytes) {
      return give_back(slab, address - begin);
    }
  }
  RC_ASSERT(false, "freed memory is not of a slab");
}

void WorkMemory::give_back(Slab& slab, uint64_t offset) {
  const auto found = slab.live.find(offset);
  RC_ASSERT(found != slab.live.end(), cat("nothing is allocated at offset ", offset));
  slab.free.give_back(offset, found->second);
  slab.live.erase(found);
}

// The slab's own GPU reads it fastest. Other GPUs need access to it as peers.
Status WorkMemory::open(const GpuSlab& slab, std::byte*& memory, Gpu& gpu) {
  if (gpus_->size() == 0) return Status::busy();
  const std::string_view uuid(slab.uuid.data());
  gpu = 0;
  for (Gpu other = 0; other < gpus_->size(); ++other) {
    if (gpus_->facts(other).uuid == uuid) gpu = other;
  }
  const GpuSums::State state = sums_.prepare(gpu);
  if (state == GpuSums::State::preparing) return Status::busy();
  if (state == GpuSums::State::refused) return sums_.refusal(gpu);
  Address address = slab.begin;
  const bool is_here = slab.process == number_of_process();
  RC_RETURN_IF_ERROR(is_here ? reach(slab, gpu) : open(slab, gpu, address));
  memory = reinterpret_cast<std::byte*>(address);
  if (!is_here) opened_[memory] = gpu;
  return {};
}

Status WorkMemory::open(const GpuSlab& slab, Gpu gpu, Address& address) {
  const Driver& driver = gpus_->driver();
  const ScopedContext scope(*gpus_, gpu);
  RC_RETURN_IF_ERROR(scope.status());
  MemoryHandle handle{};
  std::memcpy(handle.bytes, slab.handle.data(), sizeof handle.bytes);
  return driver.check(driver.call.cuIpcOpenMemHandle_v2(&address, handle, kIpcLazyPeerAccess),
                      cat("opening memory of the GPU ", slab.uuid.data(), " by CUDA IPC on ",
                          gpus_->facts(gpu).text()));
}

// For a rank in this process: its memory has the same address here.
Status WorkMemory::reach(const GpuSlab& slab, Gpu gpu) {
  if (gpus_->facts(gpu).uuid == slab.uuid.data()) return {};
  int ordinal = 0;
  Gpu owner = kHost;
  RC_RETURN_IF_ERROR(gpus_->find(slab.uuid.data(), ordinal));
  RC_RETURN_IF_ERROR(gpus_->use(ordinal, owner));
  const Driver& driver = gpus_->driver();
  const ScopedContext scope(*gpus_, gpu);
  RC_RETURN_IF_ERROR(scope.status());
  const Result result = driver.call.cuCtxEnablePeerAccess(gpus_->context(owner), 0);
  return driver.check(result == kPeerAccessAlreadyEnabled ? kSuccess : result,
                      cat("access of ", gpus_->facts(gpu).text(), " to ",
                          gpus_->facts(owner).text(), " by cuCtxEnablePeerAccess"));
}

void WorkMemory::close(std::byte* memory) {
  const auto found = opened_.find(memory);
  if (found == opened_.end()) return;  // a rank of this process
  const ScopedContext scope(*gpus_, found->second);
  if (scope.status().ok()) {
    gpus_->driver().call.cuIpcCloseMemHandle(reinterpret_cast<Address>(memory));
  }
  opened_.erase(found);
}

}  // namespace rdmacoll::cuda
