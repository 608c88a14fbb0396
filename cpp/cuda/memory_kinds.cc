#include "cuda/memory_kinds.h"

#include "base/text.h"

namespace rdmacoll::cuda {
namespace {

constexpr const char* kManagedNote =
    "an array lies in managed memory (cudaMallocManaged), which rdmacoll treats as host memory: "
    "its pages move to the host and back in each step. Allocate it with cudaMalloc to keep it on "
    "the GPU.";
constexpr const char* kUnsharedNote =
    "an array lies in managed memory (cudaMallocManaged), which the processor cannot touch on this "
    "GPU while kernels run. rdmacoll copies it like other memory of the GPU. Allocate it with "
    "cudaMalloc.";

// Whether the processor may touch managed memory of a GPU while kernels run there. Older GPUs end
// the process then.
bool is_managed_memory_shared(const Driver& driver, int ordinal) {
  DeviceNumber device = 0;
  int is_shared = 0;
  const auto which = static_cast<int>(DeviceAttribute::concurrent_managed_access);
  return driver.call.cuDeviceGet(&device, ordinal) == kSuccess &&
         driver.call.cuDeviceGetAttribute(&is_shared, which, device) == kSuccess && is_shared != 0;
}

}  // namespace

Status MemoryKinds::look(const void* memory, PointerFacts& facts) {
  facts = {};
  const Driver& driver = gpus_.driver();
  RC_RETURN_IF_ERROR(driver.usable());
  unsigned type = 0, is_managed = 0;
  int device = 0;
  unsigned long long buffer = 0;
  const PointerAttribute which[] = {PointerAttribute::memory_type,    PointerAttribute::is_managed,
                                    PointerAttribute::device_ordinal, PointerAttribute::buffer_id,
                                    PointerAttribute::range_start,    PointerAttribute::range_size};
  Address base = 0;
  std::size_t bytes = 0;
  void* values[] = {&type, &is_managed, &device, &buffer, &base, &bytes};
  const auto address = reinterpret_cast<Address>(memory);
  const Result result = driver.call.cuPointerGetAttributes(
      std::size(values), reinterpret_cast<const int*>(which), values, address);
  // The driver refuses memory that it does not know, or says nothing about it.
  if (result == kInvalidValue) return {};
  RC_RETURN_IF_ERROR(driver.check(result, "cuPointerGetAttributes"));
  const bool is_shared = is_managed != 0 && is_managed_memory_shared(driver, device);
  if (is_managed != 0 && !has_logged_managed_.exchange(true)) {
    log_.warning(is_shared ? kManagedNote : kUnsharedNote);
  }
  if (is_shared) {
    facts.kind = MemoryKind::managed;
    return {};
  }
  if (static_cast<MemoryType>(type) == MemoryType::host) facts.kind = MemoryKind::pinned;
  if (static_cast<MemoryType>(type) != MemoryType::device && is_managed == 0) return {};
  facts = {MemoryKind::device, kHost, buffer, base, bytes};
  return gpus_.use(device, facts.gpu);
}

}  // namespace rdmacoll::cuda
