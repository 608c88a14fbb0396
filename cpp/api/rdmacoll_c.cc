#include "api/rdmacoll_c.h"

#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "api/answers.h"
#include "api/commands.h"
#include "api/engine_handle.h"
#include "api/groups.h"
#include "api/pair_session.h"
#include "api/prepared.h"
#include "api/ps_calls.h"
#include "api/refusals.h"
#include "api/requests.h"
#include "base/system_error.h"
#include "base/text.h"
#include "bootstrap/rdma_ability.h"
#include "operation/operation.h"

using rdmacoll::Config;
using rdmacoll::copy_text;
using rdmacoll::Driver;
using rdmacoll::environment;
using rdmacoll::is_forked_child;
using rdmacoll::kDone;
using rdmacoll::kRefused;
using rdmacoll::kTimeout;
using rdmacoll::LongWaitHooks;
using rdmacoll::MemoryPool;
using rdmacoll::nanoseconds;
using rdmacoll::Operation;
using rdmacoll::OperationRef;
using rdmacoll::PairSession;
using rdmacoll::PlanQuestion;
using rdmacoll::read_config;
using rdmacoll::refused;
using rdmacoll::report;
using rdmacoll::Request;
using rdmacoll::request_from;
using rdmacoll::Session;
using rdmacoll::SettingValue;
using rdmacoll::Status;
using rdmacoll::World;
using rdmacoll::probe::Plan;

struct rc_prepared {
  rdmacoll::Prepared prepared;
};
struct rc_result {
  std::shared_ptr<std::byte[]> memory;
};

struct rc_pair {
  std::unique_ptr<PairSession> session;
};

namespace {

Status operation_from(rc_engine* engine, const rc_request* request, OperationRef& operation) {
  RC_RETURN_IF_ERROR(engine->session->usable());
  Request wanted;
  RC_RETURN_IF_ERROR(request_from(*request, wanted));
  RC_RETURN_IF_ERROR(engine->session->place(wanted));
  operation = std::make_shared<Operation>(std::move(wanted));
  return {};
}

int outcome(Operation& operation, bool done, char** error) {
  if (!done) return kTimeout;
  return report(operation.status(), error);
}

// ---- the table ----

void text_free(char* text) { std::free(text); }

int settings(const char* arguments, char** json, char** error) {
  Config config;
  std::vector<SettingValue> values;
  const Status status =
      read_config(arguments == nullptr ? "" : arguments, environment, config, values);
  *json = copy_text(rdmacoll::settings_json(values));
  return report(status, error);
}

int engine_open(int32_t rank, int32_t size, const char* job, const uint8_t* secret,
                int32_t secret_bytes, const char* arguments, rc_engine** engine, char** address,
                char** error) {
  const auto* bytes = reinterpret_cast<const std::byte*>(secret);
  std::unique_ptr<Session> session;
  const Status status = Session::open(rank, size, job, {bytes, bytes + secret_bytes},
                                      arguments == nullptr ? "" : arguments, session);
  if (status.ok()) {
    *address = copy_text(session->card());
    *engine = new rc_engine{std::move(session)};
  }
  return report(status, error);
}

int engine_node(rc_engine* engine, const char* const* addresses, int32_t* leader, char** error) {
  const int size = engine->session->size();
  int found = 0;
  const Status status = engine->session->probe_node({addresses, addresses + size}, found);
  *leader = found;
  return report(status, error);
}

int engine_start(rc_engine* engine, const int32_t* leaders, int64_t timeout_ms, char** error) {
  const int size = engine->session->size();
  return report(engine->session->start({leaders, leaders + size}, nanoseconds(timeout_ms)), error);
}

int engine_serve(rc_engine* engine, int64_t timeout_ms, char** left, char** error) {
  std::string causes;
  Status status = engine->session->usable();
  if (status.ok()) status = engine->session->serve(nanoseconds(timeout_ms), causes);
  if (status.ok()) *left = copy_text(causes);
  return report(status, error);
}

void engine_close(rc_engine* engine, const char* cause) {
  engine->session->close(cause == nullptr ? "" : cause);
}

int engine_blame(rc_engine* engine, int32_t rank, const char* sentence, const char* cause) {
  return engine->session->blame(rank, sentence, cause) ? 1 : 0;
}

int engine_callers(rc_engine* engine) { return engine->session->callers(); }

void engine_free(rc_engine* engine) { delete engine; }

void engine_topology(rc_engine* engine, int32_t out[6]) { engine->session->topology(out); }

char* engine_metrics(rc_engine* engine) {
  return copy_text(engine->session->usable().ok() ? engine->session->metrics() : "{}");
}

char* engine_describe(rc_engine* engine) { return copy_text(engine->session->describe()); }

char* engine_state(rc_engine* engine) {
  const Status usable = engine->session->usable();
  return copy_text(usable.ok() ? engine->session->state() : usable.message());
}

int submit(rc_engine* engine, const rc_request* request, rc_handle** handle, char** error) {
  OperationRef operation;
  Status status = operation_from(engine, request, operation);
  if (status.ok()) status = engine->session->driver().submit(operation);
  if (status.ok() && handle != nullptr) {
    *handle = new rc_handle{&engine->session->driver(), std::move(operation)};
  }
  return report(refused(*engine->session, *request, std::move(status)), error);
}

int submit_and_drive(rc_engine* engine, const rc_request* request, char** error) {
  OperationRef operation;
  Status status = operation_from(engine, request, operation);
  if (status.ok()) status = engine->session->driver().submit_and_drive(operation);
  return report(refused(*engine->session, *request, std::move(status)), error);
}

int run(rc_engine* engine, const rc_request* request, int64_t timeout_ms, rc_handle** handle,
        char** error) {
  OperationRef operation;
  *handle = nullptr;
  Status status = operation_from(engine, request, operation);
  Driver* driver = status.ok() ? &engine->session->driver() : nullptr;
  if (status.ok()) status = driver->submit_and_wait(operation, nanoseconds(timeout_ms));
  if (!status.ok()) return report(refused(*engine->session, *request, status), error, kRefused);
  const bool done = operation->done();
  *handle = new rc_handle{driver, std::move(operation)};
  return outcome(*(*handle)->operation, done, error);
}

int handle_wait(rc_handle* handle, int64_t timeout_ms, char** error) {
  if (is_forked_child()) return kTimeout;
  const bool done = handle->driver->wait(*handle->operation, nanoseconds(timeout_ms));
  return outcome(*handle->operation, done, error);
}

int handle_done(rc_handle* handle) { return handle->operation->done() ? 1 : 0; }

const void* handle_result_at(rc_handle* handle, int32_t index, int32_t* ndim, int64_t dims[8]) {
  const Operation::Result& result = handle->operation->results[static_cast<std::size_t>(index)];
  *ndim = static_cast<int32_t>(result.dims.size());
  std::copy(result.dims.begin(), result.dims.end(), dims);
  return result.memory.get();
}

const void* handle_result(rc_handle* handle, int32_t* ndim, int64_t dims[8]) {
  return handle_result_at(handle, 0, ndim, dims);
}

void handle_free(rc_handle* handle) { delete handle; }

int prepare(rc_engine* engine, const rc_request* request, int64_t timeout_ms,
            rc_prepared** prepared, char** error) {
  OperationRef operation;
  Status status = operation_from(engine, request, operation);
  if (status.ok()) status = engine->session->check(operation->request);
  if (status.ok() && request->place != nullptr) {
    status = {rdmacoll::Code::invalid,
              "what is prepared says itself where its outputs lie: no `place`."};
  }
  if (status.ok()) {
    *prepared = new rc_prepared{{*engine->session, operation, nanoseconds(timeout_ms), error}};
  }
  return report(refused(*engine->session, *request, std::move(status)), error);
}

int prepared_run(rc_prepared* prepared) { return prepared->prepared.run({}); }

LongWaitHooks lock_hooks;

void set_lock_hooks(void* (*before)(void), void (*after)(void*)) { lock_hooks = {before, after}; }

int prepared_run_locked(rc_prepared* prepared) { return prepared->prepared.run(lock_hooks); }

rc_python python;

void set_python(const rc_python* functions) { python = *functions; }

void* prepared_call(void* self, void*) {
  auto* const bound = static_cast<rc_bound*>(python.address_of(self));
  bound->is_fresh = bound->prepared != nullptr && bound->answer == kDone;
  if (bound->is_fresh) bound->answer = prepared_run_locked(bound->prepared);
  if (!bound->is_fresh || bound->answer != kDone) return python.call(bound->otherwise);
  python.refer_to(bound->result);
  return bound->result;
}

void prepared_free(rc_prepared* prepared) { delete prepared; }

rc_result* prepared_result_at(rc_prepared* prepared, int32_t index, const void** memory,
                              int32_t* ndim, int64_t dims[8]) {
  const Operation::Result& result = prepared->prepared.result(static_cast<std::size_t>(index));
  *memory = result.memory.get();
  *ndim = static_cast<int32_t>(result.dims.size());
  std::copy(result.dims.begin(), result.dims.end(), dims);
  return new rc_result{result.memory};
}

void result_free(rc_result* result) { delete result; }

void* memory_allocate(rc_engine* engine, uint64_t bytes) {
  return engine->session->pool()->lend(bytes);
}

void memory_free(rc_engine* engine, void* memory) {
  if (!is_forked_child()) engine->session->pool()->free(static_cast<std::byte*>(memory));
}

using Loan = std::shared_ptr<MemoryPool>;

void end_loan(void* loan, void* memory) {
  const std::unique_ptr<Loan> pool(static_cast<Loan*>(loan));
  (*pool)->free(static_cast<std::byte*>(memory));
}

void* memory_lend(rc_engine* engine, uint64_t bytes, void** loan, void (**release)(void*, void*)) {
  const Loan& pool = engine->session->pool();
  std::byte* memory = pool->lend(bytes);
  if (memory == nullptr) return nullptr;
  *loan = new Loan(pool);
  *release = end_loan;
  return memory;
}

int verify_schedules(int32_t first, int32_t last, char** json) {
  bool ok = false;
  *json = copy_text(rdmacoll::verify_schedules_json(first, last, ok));
  return ok ? 0 : 1;
}

int sim_faults(uint64_t begin, uint64_t end, int32_t verbose, char** json) {
  bool ok = false;
  *json = copy_text(rdmacoll::sim_faults_json(begin, end, verbose != 0, ok));
  return ok ? 0 : 1;
}

int sim_scale(const rc_scale* question, char** json, char** error) {
  rdmacoll::ScaleQuestion asked;
  std::string text;
  Status status = rdmacoll::scale_from(*question, asked);
  if (status.ok()) status = rdmacoll::sim_scale_json(asked, text);
  if (status.ok()) *json = copy_text(text);
  return report(status, error);
}

int explain(const rc_question* question, const char* arguments, char** json, char** error) {
  Config config;
  std::vector<SettingValue> values;
  PlanQuestion asked;
  std::string text;
  Status status = read_config(arguments == nullptr ? "" : arguments, environment, config, values);
  if (status.ok()) status = rdmacoll::question_from(*question, asked);
  if (status.ok()) status = rdmacoll::plan_json(asked, config, text);
  if (status.ok()) *json = copy_text(text);
  return report(status, error);
}

int devices(const char* arguments, char** json, char** error) {
  Config config;
  std::vector<SettingValue> values;
  const Status status =
      read_config(arguments == nullptr ? "" : arguments, environment, config, values);
  if (status.ok()) *json = copy_text(rdmacoll::devices_json(rdmacoll::wish_of(config)));
  return report(status, error);
}

int pair_open(int32_t place, const int32_t numbers[2], const char* job, const uint8_t* secret,
              int32_t secret_bytes, const char* arguments, rc_pair** pair, char** card,
              char** error) {
  const auto* bytes = reinterpret_cast<const std::byte*>(secret);
  std::unique_ptr<PairSession> session;
  const Status status =
      PairSession::open(place, {numbers[0], numbers[1]}, job, {bytes, bytes + secret_bytes},
                        arguments == nullptr ? "" : arguments, session);
  if (status.ok()) {
    *card = copy_text(session->card());
    *pair = new rc_pair{std::move(session)};
  }
  return report(status, error);
}

int pair_node(rc_pair* pair, const char* const cards[2], int32_t* leader, char** error) {
  int found = 0;
  const Status status = pair->session->probe_node({cards[0], cards[1]}, found);
  *leader = found;
  return report(status, error);
}

int pair_run(rc_pair* pair, const int32_t leaders[2], const rc_plan* plan, char** json,
             char** error) {
  Plan wanted;
  std::string text;
  Status status = rdmacoll::plan_from(*plan, wanted);
  if (status.ok()) status = pair->session->run({leaders[0], leaders[1]}, wanted, text);
  if (status.ok()) *json = copy_text(text);
  return report(status, error);
}

void pair_free(rc_pair* pair) { delete pair; }

int check_descriptors(int32_t needed, char** error) {
  return report(rdmacoll::check_descriptors(needed), error);
}

int set_add(rc_engine* engine, const int32_t* ranks, int32_t n_ranks, int32_t* number,
            char** error) {
  uint32_t added = 0;
  Status status = engine->session->usable();
  if (status.ok()) status = engine->session->add_set({ranks, ranks + n_ranks}, added);
  *number = static_cast<int32_t>(added);
  return report(status, error);
}

int set_remove(rc_engine* engine, int32_t number, int64_t timeout_ms, char** error) {
  Status status = engine->session->usable();
  const auto set = static_cast<uint32_t>(number);
  if (status.ok()) status = engine->session->remove_set(set, nanoseconds(timeout_ms));
  return report(status, error);
}

int set_in_flight(rc_engine* engine, int32_t number, int32_t* operations, char** error) {
  const Status status = engine->session->usable();
  const auto set = static_cast<uint32_t>(number);
  if (status.ok()) *operations = static_cast<int32_t>(engine->session->in_flight(set));
  return report(status, error);
}

// clang-format would put each function on its own line.
// clang-format off
const rc_api kApi{
    RC_ABI_VERSION, sizeof(rc_api), RDMACOLL_VERSION, text_free, settings, engine_open,
    engine_node, engine_start, engine_close, engine_free, engine_topology, engine_metrics,
    engine_describe, engine_state, submit, handle_wait, handle_done, handle_result, handle_free,
    prepare, prepared_run, prepared_free, memory_allocate, memory_free, verify_schedules,
    sim_faults, run, memory_lend, devices, pair_open, pair_node, pair_run, pair_free,
    check_descriptors, handle_result_at, explain, sim_scale, set_add, set_remove, set_in_flight,
    submit_and_drive, prepared_result_at, result_free, ps_rule_slots, ps_update, engine_serve,
    ps_open, ps_node, ps_start, ps_free, ps_serve, ps_declare, ps_move, ps_move_rows, ps_ask,
    ps_wait, ps_call_free, ps_sharding, ps_checkpoint, ps_move_slot, ps_updates, ps_submit,
    ps_end, ps_stats, set_lock_hooks, prepared_run_locked, ps_leave, ps_exchange,
    set_python, prepared_call, ps_losses, ps_failure, engine_blame, rdmacoll::refuse,
    engine_callers, rdmacoll::submit_group};
// clang-format on

}  // namespace

const rc_api* rc_get_api(uint32_t abi_version) {
  return abi_version == RC_ABI_VERSION ? &kApi : nullptr;
}
