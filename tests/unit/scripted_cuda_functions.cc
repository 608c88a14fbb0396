#include <cstring>
#include <map>
#include <utility>

#include "base/text.h"
#include "unit/scripted_cuda_call.h"

namespace rdmacoll::cuda_test {
namespace {

Context* of(ContextHandle handle) { return reinterpret_cast<Context*>(handle); }
ContextHandle handle_of(Context* context) { return reinterpret_cast<ContextHandle>(context); }
Event* of(EventHandle handle) { return reinterpret_cast<Event*>(handle); }

// The driver refuses a copy that leaves the pinned memory in which it begins.
bool leaves_pinned_memory(const void* memory, std::size_t bytes) {
  const auto* const first = static_cast<const std::byte*>(memory);
  for (const auto& [begin, length] : the().pinned) {
    const auto* const end = static_cast<const std::byte*>(begin) + length;
    if (first >= begin && first < end && first + bytes > end) return true;
  }
  return false;
}

Result copy(const char* name, void* to, const void* from, std::size_t bytes, StreamHandle stream) {
  CALLED(name);
  if (leaves_pinned_memory(to, bytes) || leaves_pinned_memory(from, bytes)) return kInvalidValue;
  return the().enqueue(name, stream, {cat(name, " ", bytes), [=] {
                                        std::memcpy(to, from, bytes);
                                        return true;
                                      }});
}

void fill_devices(Functions& f) {
  f.cuInit = [](unsigned) -> Result {
    CALLED("cuInit");
    return kSuccess;
  };
  f.cuDriverGetVersion = [](int* version) -> Result {
    *version = the().version;
    return kSuccess;
  };
  f.cuGetErrorName = [](Result result, const char** name) -> Result {
    *name = result == kOutOfMemory      ? "CUDA_ERROR_OUT_OF_MEMORY"
            : result == kIllegalAddress ? "CUDA_ERROR_ILLEGAL_ADDRESS"
                                        : "CUDA_ERROR_OF_THE_TEST";
    return kSuccess;
  };
  f.cuGetErrorString = [](Result, const char** text) -> Result {
    *text = "a sentence of the driver";
    return kSuccess;
  };
  f.cuDeviceGetCount = [](int* count) -> Result {
    *count = static_cast<int>(the().devices.size());
    return kSuccess;
  };
  // A device's handle differs from its number, which a caller must not mix up.
  f.cuDeviceGet = [](DeviceNumber* device, int ordinal) -> Result {
    CALLED("cuDeviceGet");
    if (ordinal < 0 || ordinal >= static_cast<int>(the().devices.size())) return kInvalidDevice;
    *device = ordinal + 100;
    return kSuccess;
  };
  f.cuDeviceGetName = [](char* name, int bytes, DeviceNumber device) -> Result {
    std::strncpy(name, the().devices.at(device - 100).name.c_str(),
                 static_cast<std::size_t>(bytes));
    return kSuccess;
  };
  f.cuDeviceGetUuid = [](Uuid* uuid, DeviceNumber device) -> Result {
    std::memset(uuid, the().devices.at(device - 100).uuid, sizeof *uuid);
    return kSuccess;
  };
  f.cuDeviceGetUuid_v2 = [](Uuid* uuid, DeviceNumber device) -> Result {
    const Device& found = the().devices.at(device - 100);
    std::memset(uuid, found.part != 0 ? found.part : found.uuid, sizeof *uuid);
    return kSuccess;
  };
  f.cuDeviceGetPCIBusId = [](char* text, int bytes, DeviceNumber device) -> Result {
    std::strncpy(text, cat("0000:0", device - 100, ":00.0").c_str(),
                 static_cast<std::size_t>(bytes));
    return kSuccess;
  };
  f.cuDeviceTotalMem_v2 = [](std::size_t* bytes, DeviceNumber) -> Result {
    *bytes = std::size_t{12} << 30;
    return kSuccess;
  };
  f.cuDeviceGetAttribute = [](int* value, int attribute, DeviceNumber device) -> Result {
    const Device& found = the().devices.at(device - 100);
    const std::map<DeviceAttribute, int> known = {
        {DeviceAttribute::capability_major, 3},
        {DeviceAttribute::capability_minor, 7},
        {DeviceAttribute::compute_mode, found.compute_mode},
        {DeviceAttribute::concurrent_managed_access, found.shares_managed_memory ? 1 : 0}};
    const auto entry = known.find(static_cast<DeviceAttribute>(attribute));
    if (entry == known.end()) return kInvalidValue;
    *value = entry->second;
    return kSuccess;
  };
}

void fill_contexts(Functions& f) {
  f.cuDevicePrimaryCtxRetain = [](ContextHandle* context, DeviceNumber device) -> Result {
    CALLED("cuDevicePrimaryCtxRetain");
    Context& found = the().contexts.at(device - 100);
    ++found.retained;
    *context = handle_of(&found);
    return kSuccess;
  };
  f.cuDevicePrimaryCtxRelease_v2 = [](DeviceNumber device) -> Result {
    CALLED("cuDevicePrimaryCtxRelease");
    --the().contexts.at(device - 100).retained;
    return kSuccess;
  };
  f.cuCtxPushCurrent_v2 = [](ContextHandle context) -> Result {
    CALLED("cuCtxPushCurrent");
    ScriptedCuda::current().push_back(of(context));
    return kSuccess;
  };
  f.cuCtxPopCurrent_v2 = [](ContextHandle* context) -> Result {
    CALLED("cuCtxPopCurrent");
    if (ScriptedCuda::current().empty()) return kInvalidContext;
    *context = handle_of(ScriptedCuda::current().back());
    ScriptedCuda::current().pop_back();
    return kSuccess;
  };
  f.cuCtxGetCurrent = [](ContextHandle* context) -> Result {
    CALLED("cuCtxGetCurrent");
    const std::vector<Context*>& stack = ScriptedCuda::current();
    *context = stack.empty() ? nullptr : handle_of(stack.back());
    return kSuccess;
  };
  f.cuCtxGetDevice = [](DeviceNumber* device) -> Result {
    CALLED("cuCtxGetDevice");
    if (ScriptedCuda::current().empty()) return kInvalidContext;
    *device = ScriptedCuda::current().back()->ordinal + 100;
    return kSuccess;
  };
}

void fill_streams(Functions& f) {
  f.cuStreamCreate = [](StreamHandle* stream, unsigned flags) -> Result {
    CALLED("cuStreamCreate");
    if (ScriptedCuda::current().empty()) return kInvalidContext;
    if (flags != kStreamNonBlocking) the().note("a stream that waits for the default stream");
    the().streams.push_back(std::make_unique<Stream>());
    the().streams.back()->context = ScriptedCuda::current().back();
    ++the().live_streams;
    *stream = reinterpret_cast<StreamHandle>(the().streams.back().get());
    return kSuccess;
  };
  f.cuStreamDestroy_v2 = [](StreamHandle) -> Result {
    CALLED("cuStreamDestroy");
    --the().live_streams;
    return kSuccess;
  };
  f.cuStreamIsCapturing = [](StreamHandle stream, int* status) -> Result {
    CALLED("cuStreamIsCapturing");
    *status = the().stream(stream)->is_capturing ? 1 : kCaptureNone;
    return kSuccess;
  };
  f.cuStreamGetCtx = [](StreamHandle stream, ContextHandle* context) -> Result {
    CALLED("cuStreamGetCtx");
    *context = handle_of(the().stream(stream)->context);
    return kSuccess;
  };
  f.cuStreamWaitEvent = [](StreamHandle stream, EventHandle event, unsigned) -> Result {
    CALLED("cuStreamWaitEvent");
    const uint64_t record = of(event)->recorded;
    if (record == 0) the().note("a wait for an event that was never recorded");
    the().stream(stream)->queue.push_back(
        {"wait", [event, record] { return of(event)->passed >= record; }});
    return kSuccess;
  };
  f.cuStreamSynchronize = [](StreamHandle stream) -> Result {
    CALLED("cuStreamSynchronize");
    Stream& own = *the().stream(stream);
    // Its work may wait for that of other streams.
    while (!own.queue.empty() && (the().step(own) || the().run_with_lock())) {
    }
    return kSuccess;
  };
  f.cuLaunchHostFunc = [](StreamHandle stream, void (*function)(void*), void* context) -> Result {
    CALLED("cuLaunchHostFunc");
    return the().enqueue("cuLaunchHostFunc", stream, {"host function", [function, context] {
                                                        function(context);
                                                        return true;
                                                      }});
  };
}

void fill_events(Functions& f) {
  f.cuThreadExchangeStreamCaptureMode = [](int* mode) -> Result {
    std::swap(*mode, ScriptedCuda::capture_mode());
    return kSuccess;
  };
  f.cuEventCreate = [](EventHandle* event, unsigned flags) -> Result {
    CALLED("cuEventCreate");
    if (ScriptedCuda::current().empty()) return kInvalidContext;
    if (flags != kEventDisableTiming) the().note("an event with timing");
    the().events.push_back(std::make_unique<Event>());
    the().events.back()->context = ScriptedCuda::current().back();
    ++the().live_events;
    *event = reinterpret_cast<EventHandle>(the().events.back().get());
    return kSuccess;
  };
  f.cuEventDestroy_v2 = [](EventHandle) -> Result {
    CALLED("cuEventDestroy");
    --the().live_events;
    return kSuccess;
  };
  f.cuEventRecord = [](EventHandle event, StreamHandle stream) -> Result {
    CALLED("cuEventRecord");
    Stream* const on = the().stream(stream);
    if (on->context != of(event)->context) return kInvalidHandle;
    const uint64_t record = ++of(event)->recorded;
    on->queue.push_back({"record", [event, record] {
                           of(event)->passed = record;
                           return true;
                         }});
    return kSuccess;
  };
  // An event that was never recorded counts as passed, as for the real driver.
  f.cuEventQuery = [](EventHandle event) -> Result {
    Result found = kNotReady;
    {
      CALLED("cuEventQuery");
      if (of(event)->recorded == 0) the().note("a query of an event that was never recorded");
      if (of(event)->passed >= of(event)->recorded) found = kSuccess;
    }
    const std::function<void()> then = std::exchange(the().after_query, nullptr);
    if (then) then();
    return found;
  };
}

void fill_memory(Functions& f) {
  f.cuMemAlloc_v2 = [](Address* address, std::size_t bytes) -> Result {
    {
      CALLED("cuMemAlloc");
      if (ScriptedCuda::current().empty()) return kInvalidContext;
    }
    *address =
        reinterpret_cast<Address>(the().place(bytes, ScriptedCuda::current().back()->ordinal));
    return kSuccess;
  };
  f.cuMemFree_v2 = [](Address address) -> Result {
    if (the().while_freeing) the().while_freeing();
    CALLED("cuMemFree");
    return the().memory.erase(address) == 1 ? kSuccess : kInvalidValue;
  };
  f.cuIpcGetMemHandle = [](MemoryHandle* handle, Address address) -> Result {
    CALLED("cuIpcGetMemHandle");
    *handle = {};
    return the().memory.contains(address) ? kSuccess : kInvalidValue;
  };
  f.cuMemHostAlloc = [](void** memory, std::size_t bytes, unsigned) -> Result {
    {
      CALLED("cuMemHostAlloc");
      if (ScriptedCuda::current().empty()) return kInvalidContext;
    }
    *memory = the().place(bytes, ScriptedCuda::current().back()->ordinal, MemoryType::host);
    return kSuccess;
  };
  f.cuMemFreeHost = [](void* memory) -> Result {
    CALLED("cuMemFreeHost");
    return the().memory.erase(reinterpret_cast<Address>(memory)) == 1 ? kSuccess : kInvalidValue;
  };
  f.cuMemHostRegister_v2 = [](void* memory, std::size_t bytes, unsigned flags) -> Result {
    CALLED("cuMemHostRegister");
    if (ScriptedCuda::current().empty()) return kInvalidContext;
    if (flags != (kHostRegisterPortable | kHostRegisterMapped))
      the().note("not portable or mapped");
    the().pinned[memory] = bytes;
    return kSuccess;
  };
  f.cuMemHostUnregister = [](void* memory) -> Result {
    CALLED("cuMemHostUnregister");
    return the().pinned.erase(memory) == 1 ? kSuccess : kMemoryNotRegistered;
  };
  f.cuMemcpyHtoDAsync_v2 = [](Address to, const void* from, std::size_t bytes,
                              StreamHandle stream) -> Result {
    return copy("cuMemcpyHtoDAsync", reinterpret_cast<void*>(to), from, bytes, stream);
  };
  f.cuMemcpyDtoHAsync_v2 = [](void* to, Address from, std::size_t bytes,
                              StreamHandle stream) -> Result {
    return copy("cuMemcpyDtoHAsync", to, reinterpret_cast<const void*>(from), bytes, stream);
  };
  f.cuMemcpyDtoDAsync_v2 = [](Address to, Address from, std::size_t bytes,
                              StreamHandle stream) -> Result {
    return copy("cuMemcpyDtoDAsync", reinterpret_cast<void*>(to),
                reinterpret_cast<const void*>(from), bytes, stream);
  };
  f.cuPointerGetAttribute = [](void* value, int attribute, Address address) -> Result {
    CALLED("cuPointerGetAttribute");
    const auto which = static_cast<PointerAttribute>(attribute);
    if (which != PointerAttribute::is_legacy_cuda_ipc_capable) return kInvalidValue;
    *static_cast<unsigned*>(value) = the().has_ipc ? 1 : 0;
    return the().memory.contains(address) ? kSuccess : kInvalidValue;
  };
  f.cuPointerGetAttributes = [](unsigned count, const int* attributes, void** values,
                                Address address) -> Result {
    CALLED("cuPointerGetAttributes");
    auto found = the().memory.upper_bound(address);
    if (found == the().memory.begin()) return kInvalidValue;
    const auto& [base, memory] = *--found;
    if (address - base >= memory.bytes) return kInvalidValue;
    for (unsigned i = 0; i < count; ++i) {
      switch (static_cast<PointerAttribute>(attributes[i])) {
        case PointerAttribute::memory_type:
          *static_cast<unsigned*>(values[i]) = static_cast<unsigned>(memory.type);
          break;
        case PointerAttribute::is_managed:
          *static_cast<unsigned*>(values[i]) = memory.is_managed ? 1 : 0;
          break;
        case PointerAttribute::device_ordinal:
          *static_cast<int*>(values[i]) = memory.ordinal;
          break;
        case PointerAttribute::buffer_id:
          *static_cast<unsigned long long*>(values[i]) = memory.id;
          break;
        case PointerAttribute::range_start:
          *static_cast<Address*>(values[i]) = base;
          break;
        case PointerAttribute::range_size:
          *static_cast<std::size_t*>(values[i]) = memory.bytes;
          break;
        default:
          return kInvalidValue;
      }
    }
    return kSuccess;
  };
}

}  // namespace

Functions ScriptedCuda::functions() const {
  Functions functions;
  fill_devices(functions);
  fill_contexts(functions);
  fill_streams(functions);
  fill_events(functions);
  fill_memory(functions);
  fill_kernels(functions);
  return functions;
}

}  // namespace rdmacoll::cuda_test
