// The driver's functions of streams, events and host functions.

#include "cuda_sim/driver.h"
#include "cuda_sim/exports.h"

namespace rdmacoll::cuda_sim {
namespace {

bool has_passed(const Event& event) { return !event.mark || event.mark->has_passed; }

// Runs the body with an event of the driver.
template <class Body>
Result of_event(const char* name, EventHandle handle, Body&& body) {
  return in_call(name, Needs::init, [&](Call& call) -> Result {
    Event* const event = call.driver().event(handle);
    return event ? body(call, *event) : kInvalidHandle;
  });
}

// Runs the body with a stream of any context, which need not be current.
template <class Body>
Result of_stream(const char* name, StreamHandle handle, Body&& body) {
  return in_call(name, Needs::init, [&](Call& call) -> Result {
    Stream* const stream = call.any_stream(handle);
    if (stream) return body(call, *stream);
    return reinterpret_cast<std::uintptr_t>(handle) <= kPerThreadStream ? kInvalidContext
                                                                        : kInvalidHandle;
  });
}

// Says whether another blocking stream of the legacy stream's context is captured.
bool would_join_a_capture(Driver& all, const Stream& stream) {
  if (!stream.is_legacy) return false;
  for (const auto& [_, one] : all.streams) {
    if (one->context == stream.context && one->is_blocking && one->capture != kCaptureNone) {
      return true;
    }
  }
  return false;
}

}  // namespace

extern "C" {

Result cuStreamCreate(StreamHandle* stream, unsigned flags) {
  return in_call("cuStreamCreate", Needs::context, [&](Call& call) -> Result {
    if (flags > kStreamNonBlocking) return kInvalidValue;
    Driver& all = call.driver();
    *stream = all.new_handle<StreamHandle>();
    all.streams[*stream] = all.scheduler.create(&call.context(), flags != kStreamNonBlocking);
    return kSuccess;
  });
}

Result cuStreamDestroy_v2(StreamHandle stream) {
  return in_call("cuStreamDestroy_v2", Needs::init, [&](Call& call) -> Result {
    Driver& all = call.driver();
    const auto found = all.streams.find(stream);
    if (found == all.streams.end()) return kInvalidHandle;
    found->second->is_destroyed = true;  // queued work is still done
    all.streams.erase(found);
    return kSuccess;
  });
}

Result cuStreamWaitEvent(StreamHandle stream, EventHandle event, unsigned flags) {
  return of_stream("cuStreamWaitEvent", stream, [&](Call& call, Stream& own) -> Result {
    const Event* const found = call.driver().event(event);
    if (!found) return kInvalidHandle;
    if (flags != 0) return kInvalidValue;
    call.driver().log.count("events waited for");
    if (!found->mark) call.driver().log.count("waits for events without a record");
    if (has_passed(*found)) return own.context->error;
    return call.submit(own, {.awaits = found->mark});
  });
}

Result cuStreamQuery(StreamHandle stream) {
  return of_stream("cuStreamQuery", stream, [&](Call&, Stream& own) -> Result {
    if (own.context->error != kSuccess) return own.context->error;
    if (own.capture != kCaptureNone) return kStreamCaptureUnsupported;
    return own.queue.empty() ? kSuccess : kNotReady;
  });
}

Result cuStreamSynchronize(StreamHandle stream) {
  return of_stream("cuStreamSynchronize", stream, [&](Call& call, Stream& own) -> Result {
    call.driver().log.count("stream synchronisations");
    if (own.is_legacy) call.driver().log.count("device-wide synchronisations");
    return call.wait_for(own);
  });
}

Result cuStreamIsCapturing(StreamHandle stream, int* status) {
  return of_stream("cuStreamIsCapturing", stream, [&](Call& call, Stream& own) -> Result {
    if (would_join_a_capture(call.driver(), own)) return kStreamCaptureImplicit;
    *status = own.capture;
    return kSuccess;
  });
}

Result cuStreamGetCtx(StreamHandle stream, ContextHandle* context) {
  return of_stream("cuStreamGetCtx", stream, [&](Call&, Stream& own) -> Result {
    *context = own.context->handle();
    return kSuccess;
  });
}

Result cuStreamBeginCapture_v2(StreamHandle stream, int) {
  return of_stream("cuStreamBeginCapture_v2", stream, [&](Call&, Stream& own) -> Result {
    if (own.is_legacy) return kStreamCaptureUnsupported;
    own.capture = 1;
    return kSuccess;
  });
}

Result cuStreamEndCapture(StreamHandle stream, void** graph) {
  return of_stream("cuStreamEndCapture", stream, [&](Call&, Stream& own) -> Result {
    if (own.capture == kCaptureNone) return kInvalidValue;
    own.capture = kCaptureNone;
    *graph = nullptr;
    return kSuccess;
  });
}

Result cuEventCreate(EventHandle* event, unsigned flags) {
  return in_call("cuEventCreate", Needs::context, [&](Call& call) -> Result {
    if ((flags & kEventInterprocess) && !(flags & kEventDisableTiming)) return kInvalidValue;
    Driver& all = call.driver();
    *event = all.new_handle<EventHandle>();
    auto made = std::make_unique<Event>();
    made->context = &call.context();
    made->flags = flags;
    all.events[*event] = std::move(made);
    return kSuccess;
  });
}

Result cuEventDestroy_v2(EventHandle event) {
  return of_event("cuEventDestroy_v2", event, [&](Call& call, Event&) -> Result {
    call.driver().events.erase(event);
    return kSuccess;
  });
}

Result cuEventRecord(EventHandle event, StreamHandle stream) {
  return of_stream("cuEventRecord", stream, [&](Call& call, Stream& own) -> Result {
    Event* const found = call.driver().event(event);
    if (!found || found->context != own.context) return kInvalidHandle;
    auto mark = std::make_shared<Mark>();
    const Result result = call.submit(own, {.records = mark});
    if (result != kSuccess) return result;
    found->mark = std::move(mark);
    call.driver().log.count("events recorded");
    return kSuccess;
  });
}

Result cuEventQuery(EventHandle event) {
  return of_event("cuEventQuery", event, [&](Call&, Event& own) -> Result {
    if (own.context->error != kSuccess) return own.context->error;
    return has_passed(own) ? kSuccess : kNotReady;
  });
}

Result cuEventSynchronize(EventHandle event) {
  return of_event("cuEventSynchronize", event, [&](Call& call, Event& own) -> Result {
    call.driver().log.count("event synchronisations");
    const Context& context = *own.context;
    const std::shared_ptr<Mark> mark = own.mark;
    call.wait([&] { return !mark || mark->has_passed || context.error != kSuccess; });
    return context.error;
  });
}

Result cuLaunchHostFunc(StreamHandle stream, void (*function)(void*), void* context) {
  return of_stream("cuLaunchHostFunc", stream, [&](Call& call, Stream& own) -> Result {
    if (!function) return kInvalidValue;
    call.driver().log.count("host functions");
    return call.submit(own, {.host_function = function, .host_argument = context});
  });
}

}  // extern "C"
}  // namespace rdmacoll::cuda_sim
