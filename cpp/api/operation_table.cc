// The functions for operations that run once, in the C interface.
#include <algorithm>
#include <memory>
#include <utility>

#include "api/device_requests.h"
#include "api/engine_handle.h"
#include "api/groups.h"
#include "api/lock_hooks.h"
#include "api/refusals.h"
#include "api/requests.h"
#include "api/return_values.h"
#include "api/tables.h"

namespace rdmacoll {

GilReleaseHooks lock_hooks;

namespace {

int outcome(Operation& operation, bool done, char** error) {
  if (!done) return kTimeout;
  return report(follow_end(operation), error);
}

// Prepares an operation of an earlier call on a stream. The address may belong to other memory now,
// for which the operation cannot run: then it becomes null.
Status reuse(Session& session, const rc_request& request, OperationRef& operation) {
  const std::vector<TensorRef> before = operation->request.tensors;
  RC_RETURN_IF_ERROR(use_stream(session, request.stream, operation->request));
  const auto is_same = [](const TensorRef& a, const TensorRef& b) { return a.gpu == b.gpu; };
  if (!std::ranges::equal(before, operation->request.tensors, is_same)) operation = nullptr;
  return {};
}

int operation_submit(rc_engine* engine, const rc_request* request, rc_handle** handle,
                     char** error) {
  OperationRef operation;
  Status status = operation_from(*engine->session, *request, operation);
  if (status.ok()) status = engine->session->driver().submit(operation);
  if (status.ok() && handle != nullptr) {
    *handle = new rc_handle{&engine->session->driver(), std::move(operation)};
  }
  return report(refused(*engine->session, *request, std::move(status)), error);
}

int operation_submit_and_drive(rc_engine* engine, const rc_request* request, char** error) {
  OperationRef operation;
  Status status = operation_from(*engine->session, *request, operation);
  if (status.ok()) status = engine->session->driver().submit_and_drive(operation);
  return report(refused(*engine->session, *request, std::move(status)), error);
}

int operation_run(rc_engine* engine, const rc_request* request, int64_t timeout_ms,
                  rc_handle** handle, char** error) {
  OperationRef operation;
  *handle = nullptr;
  Status status = operation_from(*engine->session, *request, operation);
  Driver* driver = status.ok() ? &engine->session->driver() : nullptr;
  if (status.ok()) status = driver->submit_and_wait(operation, nanoseconds(timeout_ms));
  if (!status.ok()) return report(refused(*engine->session, *request, status), error, kRefused);
  const bool done = operation->done();
  *handle = new rc_handle{driver, std::move(operation)};
  return outcome(*(*handle)->operation, done, error);
}

// `gives_results`: an operation that has succeeded goes to the caller, and is kept afterwards.
int call(rc_engine* engine, const rc_request* request, int64_t timeout_ms, int32_t has_lock,
         bool gives_results, rc_handle** handle, char** error) {
  Session& session = *engine->session;
  GilRelease gil_release(lock_hooks);
  OperationRef operation;
  *handle = nullptr;
  Status status = session.usable();
  // Devices know the memory of a recipe, which may not be registered any more.
  const bool can_repeat =
      status.ok() && RepeatedCalls::can_repeat(*request) && !session.fabric().via_nic();
  if (can_repeat) operation = engine->repeated_calls.take(*request);
  if (operation != nullptr && request->stream != 0) status = reuse(session, *request, operation);
  if (status.ok() && operation == nullptr) status = operation_from(session, *request, operation);
  if (status.ok()) {
    status = session.driver().submit_and_wait(operation, nanoseconds(timeout_ms),
                                              has_lock != 0 ? &gil_release : nullptr);
  }
  if (!status.ok()) return report(refused(session, *request, status), error, kRefused);
  if (!operation->done()) {
    *handle = new rc_handle{&session.driver(), std::move(operation)};
    return kTimeout;
  }
  if (status = follow_end(*operation); !status.ok()) return report(status, error);
  RepeatedCalls* const repeated_calls = can_repeat ? &engine->repeated_calls : nullptr;
  if (gives_results) {
    *handle = new rc_handle{&session.driver(), std::move(operation), repeated_calls, request->root,
                            request->stream};
    return kDone;
  }
  *handle = end_of(*operation);
  if (can_repeat) repeated_calls->keep(request->root, request->stream, std::move(operation));
  return kDone;
}

int operation_call(rc_engine* engine, const rc_request* request, int64_t timeout_ms,
                   int32_t has_lock, rc_handle** handle, char** error) {
  return call(engine, request, timeout_ms, has_lock, false, handle, error);
}

int operation_call_for_result(rc_engine* engine, const rc_request* request, int64_t timeout_ms,
                              int32_t has_lock, rc_handle** handle, char** error) {
  return call(engine, request, timeout_ms, has_lock, true, handle, error);
}

void operation_set_lock_hooks(void* (*before)(void), void (*after)(void*)) {
  lock_hooks = {before, after};
}

int operation_wait(rc_handle* handle, int64_t timeout_ms, char** error) {
  if (is_forked_child()) return kTimeout;
  const bool done = handle->driver->wait(*handle->operation, nanoseconds(timeout_ms));
  return outcome(*handle->operation, done, error);
}

int operation_is_done(rc_handle* handle) {
  if (handle->operation == nullptr) return has_passed(handle->end.get()) ? 1 : 0;
  Operation& operation = *handle->operation;
  return operation.done() && has_passed(operation.gpu_end.get()) ? 1 : 0;
}

rc_handle* operation_end_of(rc_handle* handle) { return end_of(*handle->operation); }

const void* operation_result_at(rc_handle* handle, int32_t index, int32_t* ndim, int64_t dims[8]) {
  const Operation::Result& result = handle->operation->results[static_cast<std::size_t>(index)];
  *ndim = static_cast<int32_t>(result.dims.size());
  std::copy(result.dims.begin(), result.dims.end(), dims);
  const auto taken = handle->taken.find(index);
  return taken == handle->taken.end() ? result.memory.get() : taken->second.lock().get();
}

rc_result* operation_result_take(rc_handle* handle, int32_t index) {
  handle->repeated_calls = nullptr;  // the next call would have no memory
  auto& result = handle->operation->results[static_cast<std::size_t>(index)];
  std::weak_ptr<std::byte[]>& taken = handle->taken[index];
  if (result.memory == nullptr) return new rc_result{taken.lock()};  // again, by a signal's handler
  taken = result.memory;
  return new rc_result{std::move(result.memory)};
}

void operation_free(rc_handle* handle) {
  if (handle->repeated_calls != nullptr) {
    handle->repeated_calls->keep(handle->root, handle->stream, std::move(handle->operation));
  }
  delete handle;
}

}  // namespace

// After a failure of a GPU no work is done any more.
bool has_passed(const GpuEnd* end) {
  bool is_over = true;
  return end == nullptr || !end->passed(is_over).ok() || is_over;
}

rc_handle* end_of(const Operation& operation) {
  if (has_passed(operation.gpu_end.get())) return nullptr;
  return new rc_handle{.driver = nullptr, .operation = nullptr, .end = operation.gpu_end};
}

const rc_operation_api kOperationApi{
    .submit = operation_submit,
    .submit_and_drive = operation_submit_and_drive,
    .submit_group = submit_group,
    .run = operation_run,
    .call = operation_call,
    .set_lock_hooks = operation_set_lock_hooks,
    .refuse = refuse,
    .wait = operation_wait,
    .is_done = operation_is_done,
    .result_at = operation_result_at,
    .free = operation_free,
    .result_take = operation_result_take,
    .call_for_result = operation_call_for_result,
    .end_of = operation_end_of,
};

}  // namespace rdmacoll
