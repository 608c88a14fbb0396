#include "cuda_sim/contexts.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>

#include "cuda_sim/driver.h"
#include "cuda_sim/errors.h"
#include "cuda_sim/exports.h"

namespace rdmacoll::cuda_sim {

std::vector<Context*>& context_stack() {
  thread_local std::vector<Context*> stack;
  return stack;
}

namespace {

constexpr Result kDeviceUnavailable = 46;

// A retained context begins without memory, streams and errors.
void begin_context(Driver& all, Context& context) {
  context.error = kSuccess;
  context.legacy = all.scheduler.create(&context, true);
  context.legacy->is_legacy = context.legacy->is_default = true;
}

// Takes a GPU for one process, as its compute mode wants. The name of a socket is the lock, since
// it goes with the process.
bool may_use(const GpuFacts& facts, Context& context) {
  const int mode = facts.attribute(DeviceAttribute::compute_mode);
  if (mode != kComputeModeExclusiveProcess) return mode != kComputeModeProhibited;
  context.lock_fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  sockaddr_un name = {.sun_family = AF_UNIX};
  std::snprintf(name.sun_path + 1, sizeof name.sun_path - 1, "cuda_sim-%s", facts.uuid.c_str());
  if (bind(context.lock_fd, reinterpret_cast<const sockaddr*>(&name), sizeof name) == 0)
    return true;
  close(context.lock_fd);
  context.lock_fd = -1;
  return false;
}

void end_context(Driver& all, Context& context) {
  all.scheduler.drop(&context);
  close_imports(all, context.gpu);
  all.memory.release_context(context.gpu);
  std::erase_if(all.events, [&](const auto& one) { return one.second->context == &context; });
  std::erase_if(all.modules, [&](const auto& one) { return one.second->context == &context; });
  std::erase_if(all.streams, [&](const auto& one) { return one.second->context == &context; });
  all.scheduler.forget(&context);
  context.per_thread.clear();
  context.legacy.reset();
  context.peers.clear();
  if (context.lock_fd >= 0) close(context.lock_fd);
  context.lock_fd = -1;
}

void copy_text(char* to, int bytes, const std::string& text) {
  if (bytes > 0) std::snprintf(to, static_cast<std::size_t>(bytes), "%s", text.c_str());
}

// Runs the body if the GPU exists.
template <class Body>
Result of_gpu(const char* name, int gpu, Body&& body) {
  return in_call(name, Needs::init, [&](Call& call) -> Result {
    return call.driver().is_gpu(gpu) ? body(call) : kInvalidDevice;
  });
}

}  // namespace

extern "C" {

Result cuInit(unsigned flags) {
  return in_call("cuInit", Needs::nothing, [&](Call& call) -> Result {
    Driver& all = call.driver();
    if (flags != 0) return kInvalidValue;
    if (all.initialized_in != 0) return kSuccess;
    if (all.machine->visible.empty()) return kNoDevice;
    all.process = getpid();
    for (std::size_t gpu = 0; gpu < all.machine->visible.size(); ++gpu) {
      all.contexts.push_back(std::make_unique<Context>());
      all.contexts.back()->gpu = static_cast<int>(gpu);
      all.memory.add_gpu(all.facts(static_cast<int>(gpu)).bytes);
    }
    all.initialized_in = getpid();
    return kSuccess;
  });
}

Result cuDriverGetVersion(int* version) {
  return in_call("cuDriverGetVersion", Needs::nothing, [&](Call& call) -> Result {
    *version = call.driver().machine->cuda_version;
    return kSuccess;
  });
}

Result cuGetErrorName(Result result, const char** name) {
  *name = error_name(result);
  return *name ? kSuccess : kInvalidValue;
}

Result cuGetErrorString(Result result, const char** text) {
  *text = error_text(result);
  return *text ? kSuccess : kInvalidValue;
}

Result cuDeviceGetCount(int* count) {
  return in_call("cuDeviceGetCount", Needs::init, [&](Call& call) -> Result {
    *count = static_cast<int>(call.driver().contexts.size());
    return kSuccess;
  });
}

Result cuDeviceGet(DeviceNumber* device, int index) {
  return of_gpu("cuDeviceGet", index, [&](Call&) -> Result {
    *device = index;
    return kSuccess;
  });
}

Result cuDeviceGetName(char* name, int bytes, DeviceNumber device) {
  return of_gpu("cuDeviceGetName", device, [&](Call& call) -> Result {
    copy_text(name, bytes, call.driver().facts(device).name);
    return kSuccess;
  });
}

Result cuDeviceGetUuid(Uuid* uuid, DeviceNumber device) {
  return of_gpu("cuDeviceGetUuid", device, [&](Call& call) -> Result {
    *uuid = call.driver().facts(device).uuid_bytes();
    return kSuccess;
  });
}

Result cuDeviceGetAttribute(int* value, int attribute, DeviceNumber device) {
  return of_gpu("cuDeviceGetAttribute", device, [&](Call& call) -> Result {
    const auto& attributes = call.driver().facts(device).attributes;
    const auto found = attributes.find(attribute);
    if (found == attributes.end()) return kInvalidValue;
    *value = found->second;
    return kSuccess;
  });
}

Result cuDeviceTotalMem_v2(std::size_t* bytes, DeviceNumber device) {
  return of_gpu("cuDeviceTotalMem_v2", device, [&](Call& call) -> Result {
    *bytes = call.driver().facts(device).bytes;
    return kSuccess;
  });
}

Result cuDeviceGetPCIBusId(char* text, int bytes, DeviceNumber device) {
  return of_gpu("cuDeviceGetPCIBusId", device, [&](Call& call) -> Result {
    copy_text(text, bytes, call.driver().facts(device).pci);
    return kSuccess;
  });
}

Result cuDeviceCanAccessPeer(int* can, DeviceNumber device, DeviceNumber peer) {
  return of_gpu("cuDeviceCanAccessPeer", device, [&](Call& call) -> Result {
    Driver& all = call.driver();
    if (!all.is_gpu(peer)) return kInvalidDevice;
    *can = 0;
    for (const int one : all.facts(device).peers) *can |= one == all.machine->visible[peer];
    return kSuccess;
  });
}

Result cuDevicePrimaryCtxRetain(ContextHandle* context, DeviceNumber device) {
  return of_gpu("cuDevicePrimaryCtxRetain", device, [&](Call& call) -> Result {
    Driver& all = call.driver();
    Context& own = *all.contexts[device];
    if (own.retained == 0 && !may_use(all.facts(device), own)) return kDeviceUnavailable;
    if (own.retained++ == 0) begin_context(all, own);
    *context = own.handle();
    return kSuccess;
  });
}

Result cuDevicePrimaryCtxRelease_v2(DeviceNumber device) {
  return of_gpu("cuDevicePrimaryCtxRelease_v2", device, [&](Call& call) -> Result {
    Context& own = *call.driver().contexts[device];
    if (own.retained == 0) return kInvalidContext;
    if (--own.retained == 0) end_context(call.driver(), own);
    return kSuccess;
  });
}

Result cuDevicePrimaryCtxGetState(DeviceNumber device, unsigned* flags, int* is_active) {
  return of_gpu("cuDevicePrimaryCtxGetState", device, [&](Call& call) -> Result {
    *flags = 0;
    *is_active = call.driver().contexts[device]->retained > 0;
    return kSuccess;
  });
}

Result cuCtxPushCurrent_v2(ContextHandle context) {
  return in_call("cuCtxPushCurrent_v2", Needs::init, [&](Call& call) -> Result {
    Context* const found = call.driver().context(context);
    if (!found) return kInvalidContext;
    if (found->retained == 0) return kContextIsDestroyed;
    context_stack().push_back(found);
    return kSuccess;
  });
}

Result cuCtxPopCurrent_v2(ContextHandle* context) {
  return in_call("cuCtxPopCurrent_v2", Needs::init, [&](Call&) -> Result {
    if (context_stack().empty() || !context_stack().back()) return kInvalidContext;
    if (context) *context = context_stack().back()->handle();
    context_stack().pop_back();
    return kSuccess;
  });
}

Result cuCtxSetCurrent(ContextHandle context) {
  return in_call("cuCtxSetCurrent", Needs::init, [&](Call& call) -> Result {
    Context* const found = call.driver().context(context);
    if (context && !found) return kInvalidContext;
    if (!context_stack().empty()) context_stack().pop_back();
    if (found) context_stack().push_back(found);
    return kSuccess;
  });
}

Result cuCtxGetCurrent(ContextHandle* context) {
  return in_call("cuCtxGetCurrent", Needs::init, [&](Call&) -> Result {
    *context = context_stack().empty() ? nullptr : context_stack().back()->handle();
    return kSuccess;
  });
}

Result cuCtxGetDevice(DeviceNumber* device) {
  return in_call("cuCtxGetDevice", Needs::broken_context, [&](Call& call) -> Result {
    *device = call.context().gpu;
    return kSuccess;
  });
}

Result cuCtxSynchronize() {
  return in_call("cuCtxSynchronize", Needs::context, [&](Call& call) -> Result {
    call.driver().log.count("device-wide synchronisations");
    const Context& context = call.context();
    const Scheduler& scheduler = call.driver().scheduler;
    call.wait([&] { return !scheduler.has_work(&context) || context.error != kSuccess; });
    return context.error;
  });
}

Result cuCtxEnablePeerAccess(ContextHandle peer, unsigned flags) {
  return in_call("cuCtxEnablePeerAccess", Needs::context, [&](Call& call) -> Result {
    call.wait_for_kernels();
    Driver& all = call.driver();
    const Context* const found = all.context(peer);
    if (flags != 0) return kInvalidValue;
    if (!found || found == &call.context() || found->retained == 0) return kInvalidContext;
    bool can = false;
    for (const int one : all.facts(call.context().gpu).peers) {
      can = can || one == all.machine->visible[found->gpu];
    }
    if (!can) return kPeerAccessUnsupported;
    const bool is_new = call.context().peers.insert(found->gpu).second;
    return is_new ? kSuccess : kPeerAccessAlreadyEnabled;
  });
}

}  // extern "C"
}  // namespace rdmacoll::cuda_sim
