#include "cuda/work_memory.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <optional>
#include <string_view>

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

// Waits until the other side of a socket has ended. Bytes that it has sent before are dropped.
void await_end_of(int socket) {
  std::array<std::byte, 256> dropped;
  ssize_t got = 0;
  do {
    got = ::recv(socket, dropped.data(), dropped.size(), 0);
    if (got < 0 && errno == EAGAIN) {  // a socket that does not block
      pollfd look{.fd = socket, .events = POLLIN, .revents = 0};
      ::poll(&look, 1, -1);
    }
  } while (got > 0 || (got < 0 && (errno == EAGAIN || errno == EINTR)));
}

}  // namespace

WorkMemory::~WorkMemory() {
  if (parts_.gpus->driver().is_forked_child()) return;
  opening_.clear();
  opened_.clear();
  awaits_peers_->store(true);
  for (const Fd& socket : ending_) await_end_of(socket.get());
  awaits_peers_->store(false);
}

uint64_t WorkMemory::bytes_max(Gpu gpu) const {
  return std::max(kFirstSlabBytes, parts_.gpus->facts(gpu).bytes / kShareOfGpu);
}

int WorkMemory::prepare(Gpu gpu, uint64_t bytes) {
  const GpuSums::State state = parts_.sums.prepare(gpu);
  if (state == GpuSums::State::preparing) return 0;
  OfGpu& memory = memory_[gpu];
  take_next(gpu, memory);
  const auto suffices = [bytes](const Slab& slab) {
    return slab.made->description().bytes >= bytes;
  };
  if (!memory.is_full && memory.next == nullptr && std::ranges::none_of(memory.slabs, suffices)) {
    if (state == GpuSums::State::refused) {
      refuse(gpu, memory, parts_.sums.refusal(gpu));
    } else {
      begin_slab(gpu, memory, bytes);
    }
  }
  return static_cast<int>(memory.slabs.size());
}

void WorkMemory::begin_slab(Gpu gpu, OfGpu& memory, uint64_t bytes) {
  const uint64_t wanted = round_up(std::max(bytes, kFirstSlabBytes), kSlabUnit);
  const uint64_t left = (bytes_max(gpu) - memory.bytes) / kSlabUnit * kSlabUnit;
  memory.is_full = wanted >= left;
  if (left == 0) return;
  memory.next = std::make_shared<NewSlab>(parts_.gpus, gpu, std::min(wanted, left));
  const Status status = parts_.sums.run([next = memory.next] { next->make(); });
  if (status.ok()) return;
  memory.next = nullptr;
  refuse(gpu, memory, status);
}

void WorkMemory::take_next(Gpu gpu, OfGpu& memory) {
  if (memory.next == nullptr || !memory.next->is_ended()) return;
  const std::shared_ptr<NewSlab> made = std::exchange(memory.next, nullptr);
  if (!made->status().ok()) return refuse(gpu, memory, made->status());
  const uint64_t bytes = made->description().bytes;
  memory.slabs.push_back({.made = made, .free = FreeExtents(bytes)});
  memory.bytes += bytes;
}

void WorkMemory::refuse(Gpu gpu, OfGpu& memory, const Status& status) {
  memory.is_full = true;
  const std::string name = parts_.gpus->facts(gpu).text();
  parts_.log.warning(
      memory.slabs.empty()
          ? cat("Arrays on ", name, " go through host memory within a node: ", status.message())
          : cat("Work memory on ", name, " stays at ", bytes_text(memory.bytes),
                ", and arrays that need more go through host memory within a node: ",
                status.message()));
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
  return reinterpret_cast<std::byte*>(slab.made->description().begin + *offset);
}

void WorkMemory::free(Gpu gpu, std::byte* memory) {
  const auto address = reinterpret_cast<uint64_t>(memory);
  for (Slab& slab : memory_.at(gpu).slabs) {
    const uint64_t begin = slab.made->description().begin;
    if (address >= begin && address - begin < slab.made->description().bytes) {
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
  const Gpus& gpus = *parts_.gpus;
  if (gpus.size() == 0) return Status::busy();
  const std::string_view uuid(slab.uuid.data());
  Gpu own = 0;
  for (Gpu other = 0; other < gpus.size(); ++other) {
    if (gpus.facts(other).uuid == uuid) own = other;
  }
  const GpuSums::State state = parts_.sums.prepare(own);
  if (state == GpuSums::State::preparing) return Status::busy();
  if (state == GpuSums::State::refused) return parts_.sums.refusal(own);
  const auto [opening, is_new] = opening_.try_emplace({slab.process, slab.begin});
  if (is_new) {
    opening->second = std::make_shared<Mapping>(parts_.gpus, own, slab);
    const Status status = parts_.sums.run([made = opening->second] { made->make(); });
    if (!status.ok()) {
      opening_.erase(opening);
      return status;
    }
  }
  if (!opening->second->is_ended()) return Status::busy();
  const std::shared_ptr<Mapping> made = std::move(opening->second);
  opening_.erase(opening);
  RC_RETURN_IF_ERROR(made->status());
  memory = made->memory();
  gpu = made->gpu();
  opened_[memory] = made;
  return {};
}

void WorkMemory::close(std::byte* memory) {
  auto node = opened_.extract(memory);
  if (!node.empty()) drop(std::move(node.mapped()));
}

void WorkMemory::forget(const GpuSlab& slab) {
  auto node = opening_.extract(SlabKey{slab.process, slab.begin});
  if (!node.empty()) drop(std::move(node.mapped()));
}

void WorkMemory::end_when_closed(Fd socket) {
  drop(std::shared_ptr<Fd>(new Fd(std::move(socket)), [](Fd* own) {
    ::shutdown(own->get(), SHUT_WR);
    delete own;
  }));
}

// Lets the thread destroy the object, after its tasks so far. A thread that is stopped, or that
// cannot be started, leaves this to the caller.
void WorkMemory::drop(std::shared_ptr<void> owned) {
  const auto last = std::make_shared<std::shared_ptr<void>>(std::move(owned));
  (void)parts_.thread.post([last] { last->reset(); });
}

}  // namespace rdmacoll::cuda
