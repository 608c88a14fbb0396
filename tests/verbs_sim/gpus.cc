#include "verbs_sim/gpus.h"

#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/text.h"

namespace rdmacoll::verbs_sim {
namespace {

constexpr std::size_t kArenaBytes = std::size_t{64} << 30;
constexpr std::size_t kPageBytes = 64 << 10;
// Small allocations share pages.
constexpr std::size_t kAlignment = 512;

std::size_t round_up(std::size_t bytes, std::size_t unit) {
  return (bytes + unit - 1) / unit * unit;
}

// 0 if it is closed.
uint64_t inode_of(int descriptor) {
  struct stat facts {};
  return ::fstat(descriptor, &facts) == 0 ? facts.st_ino : 0;
}

}  // namespace

SimGpus::SimGpus(std::vector<GpuModel> models)
    : models_(std::move(models)), bar1_used_(models_.size()) {
  void* arena =
      ::mmap(nullptr, kArenaBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  RC_ASSERT(arena != MAP_FAILED, std::strerror(errno));
  arena_ = static_cast<std::byte*>(arena);
  holes_[arena_] = kArenaBytes;
}

SimGpus::~SimGpus() { ::munmap(arena_, kArenaBytes); }

// ---- the caller ----

std::shared_ptr<SimGpus::Memory> SimGpus::make_memory(Gpu gpu, std::size_t bytes) {
  std::shared_ptr<Memory> memory(new Memory{.gpu = gpu, .bytes = bytes}, [this](Memory* gone) {
    memories_.erase(gone);
    delete gone;
  });
  memories_.insert(memory.get());
  return memory;
}

void SimGpus::touch(Memory& memory) {
  memory.written.resize(memory.bytes);
  memory.visible.resize(memory.bytes);
}

std::byte* SimGpus::allocate(Gpu gpu, std::size_t bytes, bool is_capable) {
  const std::size_t alignment = bytes >= kPageBytes ? kPageBytes : kAlignment;
  const std::size_t taken = round_up(bytes, kAlignment);
  for (auto hole = holes_.begin();; ++hole) {
    const auto at = static_cast<std::size_t>(hole->first - arena_);
    const std::size_t skipped = round_up(at, alignment) - at;
    if (hole->second < skipped + taken) continue;
    std::byte* address = hole->first + skipped;
    const std::size_t left = hole->second - skipped - taken;
    hole->second = skipped;
    if (skipped == 0) holes_.erase(hole);
    if (left > 0) holes_[address + taken] = left;
    allocations_[address] = {bytes, next_buffer_id_++, is_capable, make_memory(gpu, bytes)};
    return address;
  }
}

void SimGpus::free(std::byte* address) {
  const auto found = allocations_.find(address);
  RC_ASSERT(found != allocations_.end(), "freed twice");
  std::size_t bytes = round_up(found->second.bytes, kAlignment);
  allocations_.erase(found);
  auto next = holes_.lower_bound(address);
  if (next != holes_.end() && next->first == address + bytes) {
    bytes += next->second;
    next = holes_.erase(next);
  }
  if (next != holes_.begin() && std::prev(next)->first + std::prev(next)->second == address) {
    std::prev(next)->second += bytes;
  } else {
    holes_[address] = bytes;
  }
}

void SimGpus::remap(std::byte* address) {
  Allocation& allocation = allocations_.at(address);
  allocation.memory = make_memory(allocation.memory->gpu, allocation.bytes);
  allocation.buffer_id = next_buffer_id_++;
}

const SimGpus::Allocation* SimGpus::holder(const std::byte* address,
                                           const std::byte** begin) const {
  auto at = allocations_.upper_bound(address);
  if (at == allocations_.begin() || address >= (--at)->first + at->second.bytes) return nullptr;
  *begin = at->first;
  return &at->second;
}

void SimGpus::write(std::byte* to, std::span<const std::byte> bytes) {
  const std::byte* begin = nullptr;
  const Allocation* allocation = holder(to, &begin);
  RC_ASSERT(allocation != nullptr, "a kernel writes to freed memory");
  touch(*allocation->memory);
  std::copy(bytes.begin(), bytes.end(), allocation->memory->written.begin() + (to - begin));
  std::copy(bytes.begin(), bytes.end(), allocation->memory->visible.begin() + (to - begin));
}

std::vector<std::byte> SimGpus::read(const std::byte* from, std::size_t bytes) const {
  const std::byte* begin = nullptr;
  const Allocation* allocation = holder(from, &begin);
  RC_ASSERT(allocation != nullptr, "a kernel reads freed memory");
  touch(*allocation->memory);
  const auto first = allocation->memory->visible.begin() + (from - begin);
  return {first, first + static_cast<std::ptrdiff_t>(bytes)};
}

std::size_t SimGpus::bytes_alive() {
  forget_closed();
  std::size_t bytes = 0;
  for (const Memory* memory : memories_) bytes += memory->bytes;
  return bytes;
}

// ---- the driver ----

bool SimGpus::find(const std::byte* address, GpuAllocation& allocation) {
  ++counters_.finds;
  const std::byte* begin = nullptr;
  const Allocation* found = holder(address, &begin);
  if (found == nullptr) return false;
  allocation = {.begin = const_cast<std::byte*>(begin),
                .bytes = found->bytes,
                .buffer_id = found->buffer_id,
                .gpu = found->memory->gpu,
                .is_capable = found->is_capable};
  return true;
}

// The pages may have other allocations, too.
Status SimGpus::dma_buf(Gpu gpu, const Piece& pages, Fd& descriptor) {
  ++counters_.dma_bufs;
  const std::byte* begin = pages.data;
  RC_ASSERT((begin - arena_) % 4096 == 0 && pages.bytes % 4096 == 0, "parts of pages");
  DmaBuf buf{.begin = begin, .bytes = pages.bytes};
  auto at = allocations_.lower_bound(begin);
  if (at != allocations_.begin() && std::prev(at)->first + std::prev(at)->second.bytes > begin)
    --at;
  for (; at != allocations_.end() && at->first < begin + pages.bytes; ++at) {
    buf.memories[at->first] = at->second.memory;
  }
  if (buf.memories.empty() || !model(gpu).gives_dma_bufs) {
    return {Code::failed, "The driver gives no dma-buf."};
  }
  descriptor = Fd(::memfd_create("dma-buf", MFD_CLOEXEC));
  buf.inode = inode_of(descriptor.get());
  dma_bufs_[descriptor.get()] = std::move(buf);
  return {};
}

// A descriptor keeps its memory, and a closed one does not.
void SimGpus::forget_closed() {
  std::erase_if(dma_bufs_,
                [](const auto& entry) { return inode_of(entry.first) != entry.second.inode; });
}

Status SimGpus::set_sync_memops(const GpuAllocation& allocation) {
  ++counters_.sync_memops;
  const std::byte* begin = nullptr;
  const Allocation* found = holder(allocation.begin, &begin);
  RC_ASSERT(found != nullptr, "an attribute of freed memory");
  found->memory->is_synchronous = true;
  return {};
}

uint64_t SimGpus::registrable_bytes(Gpu gpu) {
  return model(gpu).is_bar1_known ? model(gpu).bar1_bytes : 0;
}

Status SimGpus::flush(Gpu gpu) {
  RC_ASSERT(model(gpu).write_flush == WriteFlush::call, "this GPU has no flush");
  ++counters_.flushes;
  for (Memory* memory : memories_) {
    if (memory->gpu == gpu) show(*memory, nullptr);
  }
  return {};
}

// ---- a NIC ----

bool SimGpus::owns(const std::byte* address) const {
  const std::byte* begin = nullptr;
  return holder(address, &begin) != nullptr;
}

int SimGpus::charge(Range& range, std::size_t pages) {
  uint64_t& used = bar1_used_[static_cast<std::size_t>(range.memory->gpu)];
  if (used + pages > model(range.memory->gpu).bar1_bytes) {
    ++counters_.bar1_refusals;
    return ENOMEM;
  }
  if (!range.memory->is_synchronous) ++counters_.unsynchronized;
  range.bar1_bytes = pages;
  used += pages;
  return 0;
}

int SimGpus::map(const std::byte* address, std::size_t bytes, Range& range) {
  const std::byte* begin = nullptr;
  const Allocation* found = holder(address, &begin);
  const auto offset = static_cast<std::size_t>(address - begin);
  if (found == nullptr || !found->is_capable || offset + bytes > found->bytes) return EFAULT;
  range = {.memory = found->memory, .offset = offset, .bytes = bytes};
  const auto within = static_cast<std::size_t>(address - arena_) % kPageBytes;
  return charge(range, round_up(within + bytes, kPageBytes));
}

int SimGpus::map_dma_buf(int descriptor, uint64_t offset, std::size_t bytes, Range& range) {
  forget_closed();
  const auto found = dma_bufs_.find(descriptor);
  if (found == dma_bufs_.end()) return EBADF;
  const DmaBuf& buf = found->second;
  const std::byte* address = buf.begin + offset;
  auto at = buf.memories.upper_bound(address);
  if (at == buf.memories.begin() || offset + bytes > buf.bytes) return EINVAL;
  --at;
  const auto within = static_cast<std::size_t>(address - at->first);
  const auto page_offset = static_cast<std::size_t>(address - arena_) % kPageBytes;
  if (within + bytes > at->second->bytes) return EINVAL;
  range = {.memory = at->second, .offset = within, .bytes = bytes, .is_dma_buf = true};
  return charge(range, round_up(page_offset + bytes, kPageBytes));
}

void SimGpus::unmap(const Range& range) {
  bar1_used_[static_cast<std::size_t>(range.memory->gpu)] -= range.bar1_bytes;
}

void SimGpus::check(const Range& range, std::size_t at, const std::byte* address) {
  const std::byte* begin = nullptr;
  const Allocation* now = holder(address, &begin);
  const bool is_current = now != nullptr && now->memory == range.memory &&
                          static_cast<std::size_t>(address - begin) == range.offset + at;
  if (!is_current) ++counters_.stale_accesses;
}

std::byte* SimGpus::access(const Range& range, std::size_t at) {
  touch(*range.memory);
  return range.memory->written.data() + range.offset + at;
}

void SimGpus::note_write(const void* nic, const Range& range, std::size_t at, std::size_t bytes) {
  Memory& memory = *range.memory;
  memory.unflushed.push_back({nic, range.offset + at, bytes});
  if (model(memory.gpu).write_flush == WriteFlush::none) show(memory, nullptr);
}

void SimGpus::flush_by(const void* nic, Gpu gpu) {
  for (Memory* memory : memories_) {
    if (memory->gpu == gpu) show(*memory, nic);
  }
}

// Shows the writes of one NIC, or of all.
void SimGpus::show(Memory& memory, const void* nic) {
  std::erase_if(memory.unflushed, [&](const Memory::Unflushed& write) {
    if (nic != nullptr && write.nic != nic) return false;
    std::copy_n(memory.written.data() + write.begin, write.bytes,
                memory.visible.data() + write.begin);
    return true;
  });
}

}  // namespace rdmacoll::verbs_sim
