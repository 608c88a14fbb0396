#include "transport/rdma/gpu_registrations.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "base/text.h"

namespace rdmacoll::rdma {
namespace {

// An allocation of at most this share of the BAR1 is registered as a whole. A larger one is cut
// into slabs of the other share, so that several arrays of it fit.
constexpr uint64_t kWholeShare = 2;
constexpr uint64_t kSlabShare = 8;
// The most holds that are refused between two tries to register an allocation.
constexpr uint32_t kSkipsMax = 4096;
// Allocations to look at when a new one comes. Freed memory goes this much faster than it comes.
constexpr std::size_t kSweptPerAllocation = 4;

constexpr const char* kLargerBar =
    "Turn on above-4G decoding in the firmware, and Resizable BAR where there is one.";

std::byte* page_of(std::byte* address, std::size_t page_bytes = kGpuPageBytes) {
  return address - reinterpret_cast<uintptr_t>(address) % page_bytes;
}

// The pages that hold this memory.
Piece pages_of(const Piece& memory, std::size_t page_bytes = kGpuPageBytes) {
  std::byte* begin = page_of(memory.data, page_bytes);
  std::byte* end = page_of(memory.data + memory.bytes + page_bytes - 1, page_bytes);
  return {begin, static_cast<std::size_t>(end - begin)};
}

uint64_t page_bytes(uint64_t bytes) { return bytes / kGpuPageBytes * kGpuPageBytes; }

}  // namespace

GpuRegistrations::GpuRegistrations(GpuMemoryFacts& facts, std::span<Device* const> devices,
                                   Transport::Counters& counters, Say say)
    : facts_(facts), devices_(devices), transport_counters_(counters), say_(std::move(say)) {
  RC_ASSERT(!devices.empty() && devices.size() <= kRailsMax);
}

std::size_t GpuRegistrations::Allocation::index(const std::byte* address) const {
  return static_cast<std::size_t>(address - page_of(facts.begin)) / slab_bytes;
}

Piece GpuRegistrations::Allocation::part(std::size_t index) const {
  std::byte* from = page_of(facts.begin) + index * slab_bytes;
  std::byte* begin = std::max(from, facts.begin);
  const std::size_t left = static_cast<std::size_t>(end() - from);
  return {begin, static_cast<std::size_t>(from + std::min(slab_bytes, left) - begin)};
}

// ---- holding ----

bool GpuRegistrations::hold(const Piece& memory) {
  RC_ASSERT(memory.bytes > 0);
  const uint64_t registrations = counters_.registrations;
  Allocation* allocation = current(memory.data);
  bool is_held = allocation != nullptr && allocation->obstacle.empty();
  if (is_held && !allocation->holds(memory)) {
    is_held = false;
    say_staged(allocation->facts.gpu, Reason::split,
               "An array reaches over the end of an allocation, as those of PyTorch's "
               "expandable_segments may. Allocate it with cudaMalloc.");
  }
  if (is_held && allocation->skips > 0) {
    --allocation->skips;
    is_held = false;
  }
  const std::size_t first = is_held ? allocation->index(memory.data) : 0;
  const std::size_t last = is_held ? allocation->index(memory.data + memory.bytes - 1) : 0;
  if (is_held && may_fit(*allocation, first, last)) {
    ++allocation->held_slabs;  // making room must not forget it
    std::size_t next = first;
    while (next <= last && hold(*allocation, next)) ++next;
    is_held = next > last;
    while (!is_held && next-- > first) release(allocation->slabs.at(next));
    --allocation->held_slabs;
  } else {
    is_held = false;
  }
  if (!is_held) {
    ++counters_.refusals;
  } else if (registrations == counters_.registrations) {
    ++counters_.hits;
  }
  return is_held;
}

// Whether the slabs fit beside all others that are held. If not, making room for them would drop
// registrations for nothing.
bool GpuRegistrations::may_fit(Allocation& allocation, std::size_t first, std::size_t last) {
  const Gpu gpu = allocation.facts.gpu;
  uint64_t cost = 0;
  for (std::size_t index = first; index <= last; ++index) {
    const auto found = allocation.slabs.find(index);
    const bool counts = found == allocation.slabs.end() || found->second.holds == 0;
    if (counts) cost += cost_of(allocation, index);
  }
  const uint64_t most = facts_.registrable_bytes(gpu);
  const bool fits = gpus_[gpu].held_bytes + cost <= most;
  if (cost > most) {
    say_staged(
        gpu, Reason::too_large,
        cat("An array takes more of the GPU's BAR1 than its ", bytes_text(most), ". ", kLargerBar));
  } else if (!fits) {
    say_full(gpu);
  }
  return fits;
}

void GpuRegistrations::say_full(Gpu gpu) {
  say_staged(
      gpu, Reason::full,
      cat("Arrays in use take ", bytes_text(gpus_[gpu].held_bytes), " of the ",
          bytes_text(facts_.registrable_bytes(gpu)),
          " that the GPU's BAR1 has for NICs, so others find no room at times. ", kLargerBar));
}

uint64_t GpuRegistrations::cost_of(const Allocation& allocation, std::size_t index) const {
  return uint64_t{pages_of(allocation.part(index)).bytes} * devices_.size();
}

bool GpuRegistrations::hold(Allocation& allocation, std::size_t index) {
  OfGpu& gpu = gpus_[allocation.facts.gpu];
  const auto found = allocation.slabs.find(index);
  if (found != allocation.slabs.end()) {
    Slab& slab = found->second;
    if (slab.holds++ == 0) {
      gpu.idle.erase(slab.idle);
      gpu.held_bytes += slab.cost;
      ++allocation.held_slabs;
    }
    return true;
  }
  Slab slab{.allocation = &allocation, .index = index, .holds = 1};
  slab.cost = cost_of(allocation, index);
  if (!make_room(allocation.facts.gpu, slab.cost)) {
    say_full(allocation.facts.gpu);
    return false;
  }
  if (Status opened = open(slab); !opened.ok()) {
    say_staged(allocation.facts.gpu, Reason::refused, opened.message());
    allocation.skips = std::min(kSkipsMax, uint32_t{1} << std::min(allocation.failures++, 30u));
    return false;
  }
  allocation.failures = 0;
  gpu.registered_bytes += slab.cost;
  gpu.held_bytes += slab.cost;
  ++counters_.registrations;
  ++allocation.held_slabs;
  allocation.slabs.emplace(index, std::move(slab));
  return true;
}

void GpuRegistrations::hold_again(const Piece& memory) {
  RC_ASSERT(is_held(memory), cat(memory.bytes, " bytes that are not held"));
  Allocation& allocation = allocations_.at(find(memory.data)->facts.begin);
  const std::size_t last = allocation.index(memory.data + memory.bytes - 1);
  for (std::size_t i = allocation.index(memory.data); i <= last; ++i) {
    ++allocation.slabs.at(i).holds;
  }
}

void GpuRegistrations::release(const Piece& memory) {
  RC_ASSERT(is_held(memory), cat(memory.bytes, " bytes that are not held"));
  Allocation& allocation = allocations_.at(find(memory.data)->facts.begin);
  const std::size_t last = allocation.index(memory.data + memory.bytes - 1);
  for (std::size_t i = allocation.index(memory.data); i <= last; ++i) {
    release(allocation.slabs.at(i));
  }
}

void GpuRegistrations::release(Slab& slab) {
  RC_ASSERT(slab.holds > 0);
  if (--slab.holds > 0) return;
  --slab.allocation->held_slabs;
  OfGpu& gpu = gpus_[slab.allocation->facts.gpu];
  gpu.held_bytes -= slab.cost;
  slab.idle = gpu.idle.insert(gpu.idle.end(), &slab);
}

bool GpuRegistrations::is_held(const Piece& memory) const {
  const Allocation* allocation = find(memory.data);
  if (allocation == nullptr || !allocation->holds(memory)) return false;
  const std::size_t last = allocation->index(memory.data + memory.bytes - 1);
  for (std::size_t i = allocation->index(memory.data); i <= last; ++i) {
    const auto found = allocation->slabs.find(i);
    if (found == allocation->slabs.end() || found->second.holds == 0) return false;
  }
  return true;
}

const GpuRegistrations::Allocation* GpuRegistrations::find(const std::byte* address) const {
  auto at = allocations_.upper_bound(address);
  if (at == allocations_.begin()) return nullptr;
  const Allocation& allocation = (--at)->second;
  return address < allocation.end() ? &allocation : nullptr;
}

const GpuRegistrations::Slab& GpuRegistrations::slab_of(const std::byte* address) const {
  const Allocation* allocation = find(address);
  RC_ASSERT(allocation != nullptr, "GPU memory that no NIC knows");
  return allocation->slabs.at(allocation->index(address));
}

std::size_t GpuRegistrations::reach(const std::byte* address) const {
  const Slab& slab = slab_of(address);
  const Piece part = slab.allocation->part(slab.index);
  return static_cast<std::size_t>(part.data + part.bytes - address);
}

Gpu GpuRegistrations::gpu(const std::byte* address) const {
  return slab_of(address).allocation->facts.gpu;
}

uint64_t GpuRegistrations::registered_bytes(Gpu gpu) const {
  const auto found = gpus_.find(gpu);
  return found == gpus_.end() ? 0 : found->second.registered_bytes;
}

// ---- allocations ----

// The allocation that is at the address now. Null if there is none, or if transfers still use
// memory that was freed there.
GpuRegistrations::Allocation* GpuRegistrations::current(const std::byte* address) {
  GpuAllocation now;
  const bool is_there = facts_.find(address, now);
  const Allocation* known = find(address);
  if (is_there && known != nullptr && known->facts == now) return const_cast<Allocation*>(known);
  if (known != nullptr && !forget(known->facts.begin, known->end())) return nullptr;
  if (!is_there || !forget(now.begin, now.begin + now.bytes)) return nullptr;
  sweep(kSweptPerAllocation);
  return &remember(now);
}

// Forgets the allocations in this range, which were freed. Returns false if one is held.
bool GpuRegistrations::forget(const std::byte* begin, const std::byte* end) {
  auto at = allocations_.lower_bound(begin);
  if (at != allocations_.begin() && std::prev(at)->second.end() > begin) --at;
  while (at != allocations_.end() && at->second.facts.begin < end) {
    if (at->second.held_slabs > 0) return false;
    ++counters_.freed;
    at = drop(at);
  }
  return true;
}

GpuRegistrations::Allocations::iterator GpuRegistrations::drop(Allocations::iterator at) {
  for (auto& [index, slab] : at->second.slabs) {
    OfGpu& gpu = gpus_[at->second.facts.gpu];
    gpu.idle.erase(slab.idle);
    gpu.registered_bytes -= slab.cost;
  }
  return allocations_.erase(at);
}

GpuRegistrations::Allocation& GpuRegistrations::remember(const GpuAllocation& found) {
  Allocation& allocation = allocations_[found.begin];
  allocation.facts = found;
  allocation.slab_bytes = pages_of({found.begin, found.bytes}).bytes;
  const uint64_t room = facts_.registrable_bytes(found.gpu) / devices_.size();
  const uint64_t slab = page_bytes(room / kSlabShare);
  if (!found.is_capable) {
    set_obstacle(allocation, Reason::not_capable,
                 "It is not capable of GPUDirect RDMA, as memory of cudaMallocAsync. Allocate it "
                 "with cudaMalloc.");
  } else if (room == 0) {
    set_obstacle(allocation, Reason::bar1_unknown,
                 "The size of the GPU's BAR1 is unknown, since NVML is missing.");
  } else if (allocation.slab_bytes > page_bytes(room / kWholeShare)) {
    allocation.slab_bytes = slab;
  }
  if (allocation.slab_bytes == 0) {
    allocation.slab_bytes = kGpuPageBytes;
    set_obstacle(allocation, Reason::bar1_tiny,
                 cat("The GPU's BAR1 has only ", bytes_text(room), " for each NIC."));
  }
  if (!allocation.obstacle.empty()) return allocation;
  if (Status set = facts_.set_sync_memops(found); !set.ok()) {
    set_obstacle(allocation, Reason::attribute, set.message());
  }
  return allocation;
}

void GpuRegistrations::set_obstacle(Allocation& allocation, Reason reason, const std::string& why) {
  allocation.obstacle = why;
  say_staged(allocation.facts.gpu, reason, why);
}

// A sentence may name the size of one array. Further arrays are staged for the same reason.
void GpuRegistrations::say_staged(Gpu gpu, Reason reason, const std::string& why) {
  if (!said_.insert({gpu, reason}).second) return;
  say_(cat("memory of ", facts_.text(gpu), " is staged through the host. ", why));
}

void GpuRegistrations::sweep(std::size_t count) {
  for (count = std::min(count, allocations_.size()); count > 0; --count) {
    auto at = allocations_.upper_bound(swept_);
    if (at == allocations_.end()) at = allocations_.begin();
    if (at == allocations_.end()) return;
    swept_ = at->first;
    GpuAllocation now;
    const Allocation& known = at->second;
    const bool is_there = facts_.find(swept_, now) && now == known.facts;
    if (is_there || known.held_slabs > 0) continue;
    ++counters_.freed;
    drop(at);
  }
}

// ---- registering ----

bool GpuRegistrations::make_room(Gpu gpu, uint64_t cost) {
  const uint64_t most = facts_.registrable_bytes(gpu);
  OfGpu& state = gpus_[gpu];
  if (state.registered_bytes + cost <= most) return true;
  sweep(allocations_.size());  // freed memory goes first
  while (state.registered_bytes + cost > most && !state.idle.empty()) evict(*state.idle.front());
  return state.registered_bytes + cost <= most;
}

void GpuRegistrations::evict(Slab& slab) {
  OfGpu& gpu = gpus_[slab.allocation->facts.gpu];
  gpu.idle.erase(slab.idle);
  gpu.registered_bytes -= slab.cost;
  ++counters_.evictions;
  slab.allocation->slabs.erase(slab.index);
}

// A descriptor is made anew for each registration, since the address may have other memory by now.
Status GpuRegistrations::open(Slab& slab) {
  const Piece part = slab.allocation->part(slab.index);
  Fd descriptor;
  std::string no_dma_buf;
  for (std::size_t rail = 0; rail < devices_.size(); ++rail) {
    RC_RETURN_IF_ERROR(open(slab, rail, part, descriptor, no_dma_buf));
    slab.keys[rail] = slab.registrations[rail]->keys();
    ++transport_counters_.registrations;
  }
  return {};
}

// Tries a dma-buf first, which needs no module beside the driver.
Status GpuRegistrations::open(Slab& slab, std::size_t rail, const Piece& part, Fd& descriptor,
                              std::string& no_dma_buf) {
  Device& device = *devices_[rail];
  std::string why = no_dma_buf;
  if (!device.takes_dma_bufs()) {
    why = cat(device.facts().name, " takes no dma-buf.");
  } else if (no_dma_buf.empty()) {
    const Piece pages = pages_of(part, static_cast<std::size_t>(::sysconf(_SC_PAGESIZE)));
    Status status;
    if (!descriptor) status = facts_.dma_buf(slab.allocation->facts.gpu, pages, descriptor);
    if (!status.ok()) {
      why = no_dma_buf = status.message();
    } else {
      const DmaBufPart named{.descriptor = descriptor.get(),
                             .offset = static_cast<uint64_t>(part.data - pages.data),
                             .memory = part.data,
                             .bytes = part.bytes};
      status = device.register_dma_buf(named, slab.registrations[rail]);
      if (status.ok()) return status;
      why = status.message();
    }
  }
  Status status = device.register_gpu_memory(part.data, part.bytes, slab.registrations[rail]);
  return status.ok() ? status : Status(Code::failed, cat(status.message(), " ", why));
}

}  // namespace rdmacoll::rdma
