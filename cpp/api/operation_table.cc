// The functions for operations that run once, in the C interface.
#include <algorithm>
#include <memory>
#include <utility>

#include "api/answers.h"
#include "api/engine_handle.h"
#include "api/groups.h"
#include "api/lock_hooks.h"
#include "api/refusals.h"
#include "api/requests.h"
#include "api/tables.h"

namespace rdmacoll {

LongWaitHooks lock_hooks;

namespace {

int outcome(Operation& operation, bool done, char** error) {
  if (!done) return kTimeout;
  return report(operation.status(), error);
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

int run_and_wait(rc_engine* engine, const rc_request* request, int64_t timeout_ms,
                 LongWait* long_wait, rc_handle** handle, char** error) {
  OperationRef operation;
  *handle = nullptr;
  Status status = operation_from(*engine->session, *request, operation);
  Driver* driver = status.ok() ? &engine->session->driver() : nullptr;
  if (status.ok()) status = driver->submit_and_wait(operation, nanoseconds(timeout_ms), long_wait);
  if (!status.ok()) return report(refused(*engine->session, *request, status), error, kRefused);
  const bool done = operation->done();
  *handle = new rc_handle{driver, std::move(operation)};
  return outcome(*(*handle)->operation, done, error);
}

int operation_run(rc_engine* engine, const rc_request* request, int64_t timeout_ms,
                  rc_handle** handle, char** error) {
  return run_and_wait(engine, request, timeout_ms, nullptr, handle, error);
}

int operation_run_locked(rc_engine* engine, const rc_request* request, int64_t timeout_ms,
                         rc_handle** handle, char** error) {
  LongWait long_wait(lock_hooks);
  return run_and_wait(engine, request, timeout_ms, &long_wait, handle, error);
}

void operation_set_lock_hooks(void* (*before)(void), void (*after)(void*)) {
  lock_hooks = {before, after};
}

int operation_wait(rc_handle* handle, int64_t timeout_ms, char** error) {
  if (is_forked_child()) return kTimeout;
  const bool done = handle->driver->wait(*handle->operation, nanoseconds(timeout_ms));
  return outcome(*handle->operation, done, error);
}

int operation_is_done(rc_handle* handle) { return handle->operation->done() ? 1 : 0; }

const void* operation_result_at(rc_handle* handle, int32_t index, int32_t* ndim, int64_t dims[8]) {
  const Operation::Result& result = handle->operation->results[static_cast<std::size_t>(index)];
  *ndim = static_cast<int32_t>(result.dims.size());
  std::copy(result.dims.begin(), result.dims.end(), dims);
  return result.memory.get();
}

void operation_free(rc_handle* handle) { delete handle; }

}  // namespace

const rc_operation_api kOperationApi{
    .size = sizeof(rc_operation_api),
    .submit = operation_submit,
    .submit_and_drive = operation_submit_and_drive,
    .submit_group = submit_group,
    .run = operation_run,
    .run_locked = operation_run_locked,
    .set_lock_hooks = operation_set_lock_hooks,
    .refuse = refuse,
    .wait = operation_wait,
    .is_done = operation_is_done,
    .result_at = operation_result_at,
    .free = operation_free,
};

}  // namespace rdmacoll
