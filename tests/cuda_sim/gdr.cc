#include "cuda_sim/gdr.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "cuda/gdrcopy.h"
#include "cuda_sim/driver.h"
#include "cuda_sim/exports.h"

namespace rdmacoll::cuda_sim {
namespace {

constexpr std::size_t kGpuPage = std::size_t{64} << 10;

gdr::Connection connection() { return reinterpret_cast<gdr::Connection>(std::uintptr_t{0x6d0}); }

// Runs the body with the pin. Errors are numbers of errno, as GDRCopy has them.
template <class Body>
int of_pin(const char* name, gdr::Pin handle, Body&& body) {
  Call call(name, Needs::nothing);
  if (call.refusal() != kSuccess) return call.refusal();
  const auto found = call.driver().gdr.pins.find(handle.value);
  if (found == call.driver().gdr.pins.end()) {
    call.misuse("there is no such pin.");
    return EINVAL;
  }
  return body(call, found->second);
}

// Says whether GDRCopy maps the memory: that of cuMemAlloc, which allows GPUDirect RDMA.
bool can_pin(Driver& all, const Allocation& own) {
  return !own.is_managed && !own.is_pooled && !own.is_imported && own.created == 0 &&
         own.is_gpudirect_capable &&
         all.facts(own.gpu).attribute(DeviceAttribute::gpudirect_rdma) != 0;
}

// Finds the memory behind addresses of a mapping. Returns 0 after a misuse.
Address behind(Call& call, const GdrPin& pin, const void* mapped, std::size_t bytes) {
  const auto* const place = static_cast<const std::byte*>(mapped);
  if (pin.mapping == nullptr || place < pin.mapping || place + bytes > pin.mapping + pin.mapped) {
    call.misuse("the host leaves the mapping.");
    return 0;
  }
  const Address address = pin.begin + static_cast<Address>(place - pin.mapping);
  Driver& all = call.driver();
  const Allocation* const own = all.memory.find(address);
  if (own == nullptr || !own->holds(address, bytes) || !pin.has(own->id)) {
    call.misuse("the memory was freed after it was pinned.");
    return 0;
  }
  if (!own->has_sync_memops) call.misuse("the memory has no SYNC_MEMOPS.");
  if (all.scheduler.touches({address, bytes})) {
    call.misuse("the memory is in use by work that is queued.");
  }
  return address;
}

}  // namespace

bool GdrPin::has(uint64_t id) const { return std::find(ids.begin(), ids.end(), id) != ids.end(); }

void Gdr::land(Memory& memory) {
  for (const PostedWrite& write : posted) {
    int gpu = 0;
    std::byte* const to = memory.translate(write.address, write.bytes.size(), gpu);
    if (to != nullptr) std::memcpy(to, write.bytes.data(), write.bytes.size());
  }
  posted.clear();
}

extern "C" {

RC_SIM_EXPORT gdr::Connection gdr_open() {
  Call call("gdr_open", Needs::nothing);
  if (call.refusal() != kSuccess) return nullptr;
  ++call.driver().gdr.connections;
  return connection();
}

RC_SIM_EXPORT int gdr_close(gdr::Connection) {
  Call call("gdr_close", Needs::nothing);
  Gdr& gdr = call.driver().gdr;
  if (--gdr.connections == 0 && !gdr.pins.empty()) call.misuse("memory is still pinned.");
  return 0;
}

RC_SIM_EXPORT void gdr_runtime_get_version(int* major, int* minor) {
  *major = 2;
  *minor = 4;
}

RC_SIM_EXPORT int gdr_pin_buffer(gdr::Connection, unsigned long address, std::size_t bytes,
                                 uint64_t token, uint32_t space, gdr::Pin* pin) {
  Call call("gdr_pin_buffer", Needs::nothing);
  if (call.refusal() != kSuccess) return call.refusal();
  Driver& all = call.driver();
  GdrPin made{.begin = address, .bytes = (bytes + kGpuPage - 1) / kGpuPage * kGpuPage};
  const Allocation* any = nullptr;
  for (Address at = made.begin; at < made.begin + made.bytes; at += 256) {
    const Allocation* const own = all.memory.find(at);
    if (own == nullptr || !can_pin(all, *own)) continue;
    any = own;
    if (!made.has(own->id)) made.ids.push_back(own->id);
  }
  if (any == nullptr || token != 0 || space != 0) return EINVAL;
  made.place = all.machine->visible.at(any->gpu);
  long long& taken = all.bar1_taken[made.place];
  const auto wanted = static_cast<long long>(made.bytes);
  if (taken + wanted > static_cast<long long>(all.facts(any->gpu).bar1_bytes)) return ENOMEM;
  taken += wanted;
  pin->value = all.gdr.next_pin++;
  all.gdr.pins[pin->value] = std::move(made);
  return 0;
}

RC_SIM_EXPORT int gdr_unpin_buffer(gdr::Connection, gdr::Pin handle) {
  return of_pin("gdr_unpin_buffer", handle, [&](Call& call, const GdrPin& pin) -> int {
    if (pin.mapping != nullptr) call.misuse("the pages are still mapped.");
    call.driver().bar1_taken[pin.place] -= static_cast<long long>(pin.bytes);
    call.driver().gdr.pins.erase(handle.value);
    return 0;
  });
}

RC_SIM_EXPORT int gdr_get_info(gdr::Connection, gdr::Pin handle, gdr::Info* info) {
  return of_pin("gdr_get_info", handle, [&](Call&, const GdrPin& pin) -> int {
    *info = {.address = pin.begin,
             .mapped_bytes = pin.bytes,
             .page_bytes = kGpuPage,
             .cycles = 0,
             .cycles_per_ms = 0,
             .is_mapped = pin.mapping != nullptr,
             .combines_writes = 1};
    return 0;
  });
}

RC_SIM_EXPORT int gdr_map(gdr::Connection, gdr::Pin handle, void** memory, std::size_t bytes) {
  return of_pin("gdr_map", handle, [&](Call&, GdrPin& pin) -> int {
    if (pin.mapping != nullptr) return EAGAIN;
    if (pin.begin % kGpuPage != 0 || bytes > pin.bytes) return EINVAL;
    void* const made = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (made == MAP_FAILED) return errno;
    pin.mapping = static_cast<std::byte*>(made);
    pin.mapped = bytes;
    *memory = made;
    return 0;
  });
}

RC_SIM_EXPORT int gdr_unmap(gdr::Connection, gdr::Pin handle, void* memory, std::size_t bytes) {
  return of_pin("gdr_unmap", handle, [&](Call&, GdrPin& pin) -> int {
    if (pin.mapping != memory || pin.mapped != bytes) return EINVAL;
    munmap(memory, bytes);
    pin.mapping = nullptr;
    return 0;
  });
}

RC_SIM_EXPORT int gdr_copy_to_mapping(gdr::Pin handle, void* mapped, const void* memory,
                                      std::size_t bytes) {
  return of_pin("gdr_copy_to_mapping", handle, [&](Call& call, const GdrPin& pin) -> int {
    const Address address = behind(call, pin, mapped, bytes);
    if (address == 0) return EFAULT;
    const auto* const begin = static_cast<const std::byte*>(memory);
    call.driver().gdr.posted.push_back({address, {begin, begin + bytes}});
    return 0;
  });
}

RC_SIM_EXPORT int gdr_copy_from_mapping(gdr::Pin handle, void* memory, const void* mapped,
                                        std::size_t bytes) {
  return of_pin("gdr_copy_from_mapping", handle, [&](Call& call, const GdrPin& pin) -> int {
    const Address address = behind(call, pin, mapped, bytes);
    if (address == 0) return EFAULT;
    Driver& all = call.driver();
    all.gdr.land(all.memory);
    int gpu = 0;
    std::memcpy(memory, all.memory.translate(address, bytes, gpu), bytes);
    return 0;
  });
}

}  // extern "C"
}  // namespace rdmacoll::cuda_sim
