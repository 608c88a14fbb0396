#include "cuda_sim/ipc.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <string>

#include "cuda_sim/driver.h"
#include "cuda_sim/exports.h"

namespace rdmacoll::cuda_sim {
namespace {

constexpr char kIpcMark[8] = "cudasim";

// The contents of a CUipcMemHandle.
struct IpcHandle {
  char mark[8];
  int32_t process;
  int32_t fd;
  uint64_t offset;
  uint64_t bytes;
  uint64_t serial;
  int32_t slot;
  Uuid gpu;
};
static_assert(sizeof(IpcHandle) <= sizeof(MemoryHandle));

IpcHandle unpack(const MemoryHandle& handle) {
  IpcHandle result;
  std::memcpy(&result, &handle, sizeof result);
  return result;
}

ExportSlot* table_of(Driver& all, int gpu) {
  AddressSpace& space = all.memory.space(gpu);
  return reinterpret_cast<ExportSlot*>(space.store + space.bytes);
}

// Returns the place of the GPU as CUDA counts it here, or -1.
int find_gpu(Driver& all, const Uuid& uuid) {
  for (std::size_t gpu = 0; gpu < all.contexts.size(); ++gpu) {
    const Uuid own = all.facts(static_cast<int>(gpu)).uuid_bytes();
    if (std::memcmp(&own, &uuid, sizeof uuid) == 0) return static_cast<int>(gpu);
  }
  return -1;
}

Result allow_peer(Call& call, int owner, unsigned flags) {
  Context& context = call.context();
  if (owner == context.gpu || context.peers.contains(owner)) return kSuccess;
  Driver& all = call.driver();
  const std::vector<int>& peers = all.facts(context.gpu).peers;
  const bool can = std::count(peers.begin(), peers.end(), all.machine->visible[owner]) != 0;
  if (!can || flags != kIpcLazyPeerAccess) return kPeerAccessUnsupported;
  context.peers.insert(owner);
  return kSuccess;
}

// Opens the exporter's file, or returns -1.
int open_export(const IpcHandle& handle) {
  const std::string path =
      "/proc/" + std::to_string(handle.process) + "/fd/" + std::to_string(handle.fd);
  char target[128] = {};
  if (readlink(path.c_str(), target, sizeof target - 1) < 0) return -1;
  if (std::string(target).find(export_file_name(handle.process)) == std::string::npos) return -1;
  return open(path.c_str(), O_RDWR | O_CLOEXEC);
}

// Maps the allocation and the table. Returns false if the memory was freed.
bool map_export(const IpcHandle& handle, Import& import) {
  const int fd = open_export(handle);
  if (fd < 0) return false;
  struct stat facts = {};
  fstat(fd, &facts);
  const auto page = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  const uint64_t begin = handle.offset / page * page;
  import.mapped = handle.offset + handle.bytes - begin;
  const int access = PROT_READ | PROT_WRITE;
  void* const bytes =
      mmap(nullptr, import.mapped, access, MAP_SHARED, fd, static_cast<off_t>(begin));
  void* const table = mmap(nullptr, kExportTableBytes, access, MAP_SHARED, fd,
                           facts.st_size - static_cast<off_t>(kExportTableBytes));
  close(fd);
  if (bytes == MAP_FAILED || table == MAP_FAILED) return false;
  import.mapping = static_cast<std::byte*>(bytes);
  import.table = static_cast<ExportSlot*>(table);
  import.slot = handle.slot;
  return import.table[import.slot].serial == handle.serial;
}

void unmap_export(const Import& import) {
  if (import.mapping) munmap(import.mapping, import.mapped);
  if (import.table) munmap(import.table, kExportTableBytes);
}

void sign(ExportSlot& slot) {
  for (auto& opener : slot.openers) {
    int32_t nobody = 0;
    if (opener.compare_exchange_strong(nobody, getpid())) return;
  }
}

void unsign(ExportSlot& slot) {
  for (auto& opener : slot.openers) {
    int32_t self = getpid();
    if (opener.compare_exchange_strong(self, 0)) return;
  }
}

void close_import(Driver& all, Address address) {
  const Import& import = all.imports.at(address);
  unsign(import.table[import.slot]);
  all.memory.release(address);
  unmap_export(import);
  all.imports.erase(address);
}

// Finds a slot for the allocation and fills it. Returns -1 if none is free.
int export_slot(Driver& all, Allocation& own) {
  if (own.export_slot >= 0) return own.export_slot;
  ExportSlot* const table = table_of(all, own.gpu);
  for (int slot = 0; slot < kExportSlots; ++slot) {
    uint64_t nothing = 0;
    if (!table[slot].serial.compare_exchange_strong(nothing, own.id)) continue;
    for (auto& opener : table[slot].openers) opener = 0;
    own.export_slot = slot;
    break;
  }
  return own.export_slot;
}

}  // namespace

bool is_alive(pid_t process) {
  std::ifstream file("/proc/" + std::to_string(process) + "/statm");
  unsigned long pages = 0;
  return file >> pages && pages > 0;
}

std::string export_file_name(pid_t process) { return "cuda_sim-" + std::to_string(process) + "-"; }

pid_t opener_of(Driver& all, const Allocation& own) {
  if (own.export_slot < 0) return 0;
  const auto& openers = table_of(all, own.gpu)[own.export_slot].openers;
  const auto found = std::find_if(openers.begin(), openers.end(),
                                  [](const auto& one) { return one != 0 && is_alive(one); });
  return found == openers.end() ? 0 : found->load();
}

void forget_export(Driver& all, Allocation& own) {
  if (own.export_slot >= 0) table_of(all, own.gpu)[own.export_slot].serial = 0;
  own.export_slot = -1;
}

void close_imports(Driver& all, int gpu) {
  std::vector<Address> open;
  for (const auto& [address, import] : all.imports) {
    if (import.gpu == gpu) open.push_back(address);
  }
  for (const Address address : open) close_import(all, address);
}

extern "C" {

// Takes any address of an allocation. The handle names the allocation's begin.
Result cuIpcGetMemHandle(MemoryHandle* handle, Address address) {
  return in_call("cuIpcGetMemHandle", Needs::context, [&](Call& call) -> Result {
    Driver& all = call.driver();
    Allocation* const own = all.memory.find(address);
    if (!own || own->is_managed || own->is_pooled || own->is_imported || own->created != 0)
      return kInvalidValue;
    if (!all.facts(own->gpu).has_ipc) return kNotSupported;
    const AddressSpace& space = all.memory.space(own->gpu);
    IpcHandle made = {};
    std::memcpy(made.mark, kIpcMark, sizeof kIpcMark);
    made.process = getpid();
    made.fd = space.fd;
    made.offset = own->address - space.base;
    made.bytes = own->bytes;
    made.serial = own->id;
    made.slot = export_slot(all, *own);
    made.gpu = all.facts(own->gpu).uuid_bytes();
    if (made.slot < 0) return kOutOfMemory;
    *handle = {};
    std::memcpy(handle, &made, sizeof made);
    return kSuccess;
  });
}

Result cuIpcOpenMemHandle_v2(Address* address, MemoryHandle handle, unsigned flags) {
  return in_call("cuIpcOpenMemHandle_v2", Needs::context, [&](Call& call) -> Result {
    call.wait_for_kernels();
    Driver& all = call.driver();
    const IpcHandle wanted = unpack(handle);
    if (std::memcmp(wanted.mark, kIpcMark, sizeof kIpcMark) != 0) return kInvalidValue;
    if (wanted.process == getpid()) return kInvalidContext;
    const int owner = find_gpu(all, wanted.gpu);
    if (owner < 0) return kInvalidDevice;
    const Result refusal = allow_peer(call, owner, flags);
    if (refusal != kSuccess) return refusal;
    for (auto& [begin, import] : all.imports) {
      if (import.gpu != call.context().gpu) continue;
      if (std::memcmp(&import.handle, &handle, sizeof handle) != 0) continue;
      ++import.count;
      *address = begin;
      return kSuccess;
    }
    Import import = {.handle = handle, .gpu = call.context().gpu, .count = 1};
    if (!map_export(wanted, import)) {
      unmap_export(import);
      return kInvalidValue;
    }
    const auto page = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
    Allocation* const made =
        all.memory.import(import.gpu, import.mapping + wanted.offset % page, wanted.bytes);
    if (!made) return kOutOfMemory;
    made->owner = owner;
    made->exported = &import.table[import.slot];
    made->exported_serial = wanted.serial;
    made->exporter = wanted.process;
    sign(import.table[import.slot]);
    all.imports[made->address] = import;
    *address = made->address;
    return kSuccess;
  });
}

Result cuIpcCloseMemHandle(Address address) {
  return in_call("cuIpcCloseMemHandle", Needs::context, [&](Call& call) -> Result {
    call.wait_for_kernels();
    Driver& all = call.driver();
    const auto found = all.imports.find(address);
    if (found == all.imports.end()) return kInvalidValue;
    if (--found->second.count > 0) return kSuccess;
    const Allocation* const own = all.memory.find_base(address);
    if (all.scheduler.touches({address, own->bytes})) {
      call.misuse("the memory is in use by work that is queued.");
    }
    close_import(all, address);
    return kSuccess;
  });
}

}  // extern "C"
}  // namespace rdmacoll::cuda_sim
