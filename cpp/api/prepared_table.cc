// The functions for prepared operations in the C interface.
#include <algorithm>
#include <memory>
#include <utility>

#include "api/engine_handle.h"
#include "api/lock_hooks.h"
#include "api/prepared.h"
#include "api/refusals.h"
#include "api/requests.h"
#include "api/return_values.h"
#include "api/tables.h"

struct rc_prepared {
  rdmacoll::Prepared prepared;
};

namespace rdmacoll {
namespace {

int prepared_prepare(rc_engine* engine, const rc_request* request, int64_t timeout_ms,
                     rc_prepared** prepared, char** error) {
  OperationRef operation;
  Session& session = *engine->session;
  Status status = operation_from(session, *request, operation);
  if (status.ok()) status = session.check(operation->request);
  if (status.ok() && request->shared_result != nullptr) {
    status = {Code::invalid,
              "a prepared operation has its own outputs: leave `shared_result` out."};
  }
  if (status.ok()) {
    *prepared =
        new rc_prepared{{session, operation, request->stream, nanoseconds(timeout_ms), error}};
  }
  return report(refused(session, *request, std::move(status)), error);
}

int prepared_run(rc_prepared* prepared) { return prepared->prepared.run({}); }

int prepared_run_locked(rc_prepared* prepared) { return prepared->prepared.run(lock_hooks); }

rc_result* prepared_result_at(rc_prepared* prepared, int32_t index, const void** memory,
                              int32_t* ndim, int64_t dims[8]) {
  const Operation::Result& result = prepared->prepared.result(static_cast<std::size_t>(index));
  *memory = result.memory.get();
  *ndim = static_cast<int32_t>(result.dims.size());
  std::copy(result.dims.begin(), result.dims.end(), dims);
  return new rc_result{result.memory};
}

void prepared_result_free(rc_result* result) { delete result; }

void prepared_free(rc_prepared* prepared) { delete prepared; }

rc_handle* prepared_end_of(rc_prepared* prepared) { return end_of(prepared->prepared.operation()); }

}  // namespace

const rc_prepared_api kPreparedApi{
    .prepare = prepared_prepare,
    .run = prepared_run,
    .run_locked = prepared_run_locked,
    .result_at = prepared_result_at,
    .result_free = prepared_result_free,
    .free = prepared_free,
    .end_of = prepared_end_of,
};

}  // namespace rdmacoll
