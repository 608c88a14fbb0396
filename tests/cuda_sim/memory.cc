#include "cuda_sim/memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "cuda_sim/ipc.h"

namespace rdmacoll::cuda_sim {
namespace {

// The driver gives memory in chunks of 2 MiB. Small allocations share one.
constexpr std::size_t kChunk = std::size_t{2} << 20;
constexpr std::size_t kSmall = std::size_t{1} << 20;
constexpr std::size_t kAlignment = 512;
constexpr std::size_t kHostPage = 4096;
constexpr std::size_t kGarbage = std::size_t{64} << 10;  // bytes of new memory that are not zero

constexpr int kOfOthers = 0xff;  // bytes that others have written: NaNs

constexpr std::size_t round_up(std::size_t bytes, std::size_t to) {
  return (bytes + to - 1) / to * to;
}

[[noreturn]] void give_up(const char* call) {
  std::perror(call);
  std::abort();
}

void* map_pages(std::size_t bytes, int protection, int flags, int fd) {
  void* const memory = mmap(nullptr, bytes, protection, flags | MAP_NORESERVE, fd, 0);
  if (memory == MAP_FAILED) give_up("cuda_sim: mmap");
  return memory;
}

// Returns the last entry of the map that begins at or before the address.
template <class Map>
auto at_or_before(Map& map, Address address) {
  auto found = map.upper_bound(address);
  return found == map.begin() ? map.end() : --found;
}

}  // namespace

void Memory::add_gpu(std::size_t bytes) {
  AddressSpace space;
  space.bytes = round_up(bytes, kChunk);
  space.reserved = 2 * space.bytes;
  auto* const addresses =
      map_pages(space.reserved + kChunk, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1);
  space.base = round_up(reinterpret_cast<Address>(addresses), kChunk);
  space.fd = memfd_create(export_file_name(getpid()).c_str(), MFD_CLOEXEC);
  const std::size_t file_bytes = space.bytes + kExportTableBytes;
  if (space.fd < 0 || ftruncate(space.fd, static_cast<off_t>(file_bytes)) != 0) {
    give_up("cuda_sim: memfd_create");
  }
  space.store =
      static_cast<std::byte*>(map_pages(file_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, space.fd));
  madvise(space.store, file_bytes, MADV_DONTDUMP);
  spaces_.push_back(space);
  used_.push_back(0);
}

Address Memory::find_gap(Address begin, Address end, std::size_t taken,
                         std::size_t alignment) const {
  const auto place_at = [&](Address address) {
    const Address aligned = round_up(address, alignment);
    const bool fits = taken > kChunk || aligned / kChunk == (aligned + taken - 1) / kChunk;
    return fits ? aligned : round_up(aligned, kChunk);  // small ones lie in one chunk
  };
  Address candidate = place_at(begin);
  for (auto next = allocations_.lower_bound(begin); next != allocations_.end() && next->first < end;
       ++next) {
    if (next->first >= candidate && next->first - candidate >= taken) break;
    candidate = place_at(next->first + next->second.taken);
  }
  return candidate + taken <= end ? candidate : 0;
}

Allocation* Memory::insert(Allocation allocation) {
  allocation.id = next_id_++;
  return &allocations_.insert_or_assign(allocation.address, allocation).first->second;
}

Allocation* Memory::allocate(int gpu, std::size_t bytes, bool is_pooled) {
  AddressSpace& space = spaces_.at(gpu);
  const std::size_t alignment = bytes < kSmall ? kAlignment : kChunk;
  const std::size_t taken = round_up(bytes, alignment);
  if (taken > space.bytes - used_[gpu]) return nullptr;
  const Address address = find_gap(space.base, space.base + space.bytes, taken, alignment);
  if (address == 0) return nullptr;
  used_[gpu] += taken;
  std::byte* const store = space.store + (address - space.base);
  std::memset(store, 0xcd, std::min(bytes, kGarbage));
  Allocation* const made = insert({address, bytes, taken, gpu, gpu, 0, store});
  made->is_pooled = is_pooled;
  return made;
}

Allocation* Memory::allocate_managed(int gpu, std::size_t bytes) {
  const std::size_t taken = round_up(bytes, 4096);
  auto* const store = static_cast<std::byte*>(
      map_pages(taken, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1));
  Allocation* const made = insert({address_of(store), bytes, taken, gpu, gpu, 0, store});
  made->is_managed = true;
  return made;
}

Allocation* Memory::import(int gpu, std::byte* store, std::size_t bytes) {
  const AddressSpace& space = spaces_.at(gpu);
  const std::size_t taken = round_up(bytes, kChunk);
  const Address begin = space.base + space.bytes, end = space.base + space.reserved;
  const Address address = find_gap(begin, end, taken, kChunk);
  if (address == 0) return nullptr;
  Allocation* const made = insert({address, bytes, taken, gpu, gpu, 0, store});
  made->is_imported = true;
  return made;
}

void Memory::release(Address address) {
  const auto found = allocations_.find(address);
  if (found == allocations_.end()) return;
  const Allocation& allocation = found->second;
  if (allocation.is_managed) {
    munmap(allocation.store, allocation.taken);
  } else if (!allocation.is_imported && allocation.created == 0) {
    const AddressSpace& space = spaces_.at(allocation.gpu);
    used_[allocation.gpu] -= allocation.taken;
    const auto offset = static_cast<off_t>(allocation.address - space.base);
    if (allocation.taken >= kChunk) {
      fallocate(space.fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, offset,
                static_cast<off_t>(allocation.taken));
    }
  }
  allocations_.erase(found);
}

Address Memory::reserve(std::size_t bytes) {
  auto* const addresses = map_pages(bytes + kChunk, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1);
  // The addresses before and behind the chunks stay unused.
  const Address begin = round_up(reinterpret_cast<Address>(addresses), kChunk);
  reservations_[begin] = bytes;
  return begin;
}

bool Memory::unreserve(Address address, std::size_t bytes) {
  const auto found = reservations_.find(address);
  if (found == reservations_.end() || found->second != bytes) return false;
  munmap(reinterpret_cast<void*>(address), bytes);
  reservations_.erase(found);
  return true;
}

bool Memory::is_reserved(Address address, std::size_t bytes) const {
  const auto found = at_or_before(reservations_, address);
  return found != reservations_.end() && address - found->first < found->second &&
         bytes <= found->second - (address - found->first);
}

void Memory::release_context(int gpu) {
  std::vector<Address> gone;
  for (const auto& [address, allocation] : allocations_) {
    if (allocation.gpu == gpu) gone.push_back(address);
  }
  for (const Address address : gone) release(address);
}

Allocation* Memory::find(Address address) {
  const auto found = at_or_before(allocations_, address);
  if (found == allocations_.end() || !found->second.holds(address, 1)) return nullptr;
  return &found->second;
}

Allocation* Memory::find_block(Address address, std::size_t bytes) {
  auto found = allocations_.upper_bound(address + bytes - 1);
  if (found == allocations_.begin()) return nullptr;
  Allocation& own = (--found)->second;
  const bool shares_chunk = own.taken < kChunk && own.created == 0;
  const Address begin = shares_chunk ? own.address / kChunk * kChunk : own.address;
  const Address end = shares_chunk ? begin + kChunk : own.address + round_up(own.bytes, kHostPage);
  return address >= begin && bytes <= end - address ? &own : nullptr;
}

Allocation* Memory::find_base(Address address) {
  const auto found = allocations_.find(address);
  return found == allocations_.end() ? nullptr : &found->second;
}

Pinned* Memory::find_pinned(Address address) {
  const auto found = at_or_before(pinned_, address);
  if (found == pinned_.end() || !found->second.holds(address, 1)) return nullptr;
  return &found->second;
}

Pinned* Memory::pin(Pinned pinned) {
  const auto next = pinned_.lower_bound(pinned.address);
  if (next != pinned_.end() && next->first < pinned.address + pinned.bytes) return nullptr;
  if (find_pinned(pinned.address)) return nullptr;
  pinned.id = next_id_++;
  return &pinned_.insert_or_assign(pinned.address, pinned).first->second;
}

std::byte* Memory::translate(Address address, std::size_t bytes, int& gpu) {
  if (const Allocation* found = find(address)) {
    gpu = found->owner;
    // CUDA promises nothing for memory of a process that has ended, which may belong to others.
    if (found->exported && !is_alive(found->exporter)) {
      std::memset(found->store, kOfOthers, found->bytes);
    }
    const bool is_there = !found->exported || found->exported->serial == found->exported_serial;
    return is_there && found->holds(address, bytes) ? found->store + (address - found->address)
                                                    : nullptr;
  }
  // Memory of the host may have been pinned in several parts.
  const Pinned* part = find_pinned(address);
  if (part == nullptr) return nullptr;
  gpu = -1;
  const Address last = address + std::max<std::size_t>(bytes, 1) - 1;
  while (part != nullptr && !part->holds(last, 1)) part = find_pinned(part->address + part->bytes);
  return part != nullptr ? reinterpret_cast<std::byte*>(address) : nullptr;
}

bool Memory::is_device_address(Address address) const {
  if (is_reserved(address, 1)) return true;
  return std::any_of(spaces_.begin(), spaces_.end(), [&](const AddressSpace& space) {
    return address >= space.base && address - space.base < space.reserved;
  });
}

std::size_t Memory::imported() const {
  return static_cast<std::size_t>(
      std::count_if(allocations_.begin(), allocations_.end(),
                    [](const auto& one) { return one.second.is_imported; }));
}

std::size_t Memory::bytes() const {
  std::size_t total = 0;
  for (const auto& [_, allocation] : allocations_) total += allocation.bytes;
  return total;
}

}  // namespace rdmacoll::cuda_sim
