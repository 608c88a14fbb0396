// CUDA IPC. A handle names the process, its file with the GPU's memory, and the allocation in it. A
// table behind the memory tells who has an allocation open.
#pragma once

#include <sys/types.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>

#include "cuda/driver_api.h"

namespace rdmacoll::cuda_sim {

struct Allocation;
struct Driver;

// An exported allocation, in memory that the processes share.
struct ExportSlot {
  std::atomic<uint64_t> serial;  // 0: free
  std::array<std::atomic<int32_t>, 30> openers;
};
static_assert(sizeof(ExportSlot) == 128 && std::atomic<uint64_t>::is_always_lock_free);

inline constexpr int kExportSlots = 512;
inline constexpr std::size_t kExportTableBytes = kExportSlots * sizeof(ExportSlot);

// An allocation of another process that is open here.
struct Import {
  cuda::MemoryHandle handle = {};
  int gpu = 0;  // the GPU of the context that opened it
  int count = 0;
  std::byte* mapping = nullptr;
  std::size_t mapped = 0;
  ExportSlot* table = nullptr;
  int slot = 0;
};

// The name of the file with a GPU's memory.
std::string export_file_name(pid_t process);

// Whether a process runs. One that ends gives up its memory before its sockets close, and its
// parent may collect it later.
bool is_alive(pid_t process);
// A living process that has the allocation open, or 0.
pid_t opener_of(Driver& driver, const Allocation& allocation);
void forget_export(Driver& driver, Allocation& allocation);
// Closes what a context has open.
void close_imports(Driver& driver, int gpu);

}  // namespace rdmacoll::cuda_sim
