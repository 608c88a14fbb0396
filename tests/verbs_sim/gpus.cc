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

// A part of a physical memory that a NIC has registered.
class SimGpus::Registered final : public GpusOfHost::Range {
 public:
  // `begin`: the address by which requests name the byte at `offset`.
  Registered(SimGpus& gpus, std::shared_ptr<Memory> memory, std::size_t offset, std::size_t bytes,
             const std::byte* begin)
      : gpus_(&gpus), memory_(std::move(memory)), offset_(offset), begin_(begin) {
    const auto within = static_cast<std::size_t>(begin - gpus.arena_) % kPageBytes;
    bar1_bytes_ = round_up(within + bytes, kPageBytes);
  }
  Registered(Registered&&) = default;
  ~Registered() override {
    if (memory_ != nullptr && is_charged_) used() -= bar1_bytes_;
  }

  // Returns false if BAR1 has no room.
  bool charge() {
    if (used() + bar1_bytes_ > gpus_->model(gpu()).bar1_bytes) return false;
    if (!memory_->is_synchronous) ++gpus_->counters_.unsynchronized;
    used() += bar1_bytes_;
    return is_charged_ = true;
  }
  Gpu gpu() const override { return memory_->gpu; }
  void check(const std::byte* address) override {
    const std::byte* begin = nullptr;
    const Allocation* now = gpus_->holder(address, &begin);
    const bool is_current = now != nullptr && now->memory == memory_ &&
                            static_cast<std::size_t>(address - begin) == place(address);
    if (!is_current) ++gpus_->counters_.stale_accesses;
  }
  void read(const std::byte* address, std::span<std::byte> into) override {
    check(address);
    touch(*memory_);
    std::memcpy(into.data(), memory_->written.data() + place(address), into.size());
  }
  void write(const void* nic, std::byte* address, std::span<const std::byte> bytes) override {
    check(address);
    touch(*memory_);
    std::memcpy(memory_->written.data() + place(address), bytes.data(), bytes.size());
    memory_->unflushed.push_back({nic, place(address), bytes.size()});
    if (gpus_->model(gpu()).write_flush == WriteFlush::none) show(*memory_, nullptr);
  }

 private:
  std::size_t place(const std::byte* address) const {
    return offset_ + static_cast<std::size_t>(address - begin_);
  }
  uint64_t& used() const { return gpus_->bar1_used_[static_cast<std::size_t>(gpu())]; }

  SimGpus* gpus_;
  std::shared_ptr<Memory> memory_;
  std::size_t offset_;
  const std::byte* begin_;
  uint64_t bar1_bytes_ = 0;
  bool is_charged_ = false;
};

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

int SimGpus::charge(Registered range, std::unique_ptr<Range>& charged) {
  if (!range.charge()) {
    ++counters_.bar1_refusals;
    return ENOMEM;
  }
  charged = std::make_unique<Registered>(std::move(range));
  return 0;
}

int SimGpus::map(std::byte* address, std::size_t bytes, std::unique_ptr<Range>& range) {
  const std::byte* begin = nullptr;
  const Allocation* found = holder(address, &begin);
  const auto offset = static_cast<std::size_t>(address - begin);
  if (found == nullptr || !found->is_capable || offset + bytes > found->bytes) return EFAULT;
  return charge({*this, found->memory, offset, bytes, address}, range);
}

int SimGpus::map_dma_buf(const rdma::DmaBufPart& part, std::unique_ptr<Range>& range) {
  forget_closed();
  const auto found = dma_bufs_.find(part.descriptor);
  if (found == dma_bufs_.end()) return EBADF;
  const DmaBuf& buf = found->second;
  const std::byte* address = buf.begin + part.offset;
  auto at = buf.memories.upper_bound(address);
  if (at == buf.memories.begin() || part.offset + part.bytes > buf.bytes) return EINVAL;
  --at;
  const auto within = static_cast<std::size_t>(address - at->first);
  if (within + part.bytes > at->second->bytes) return EINVAL;
  return charge({*this, at->second, within, part.bytes, part.memory}, range);
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
