// The functions for engines in the C interface.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "api/engine_handle.h"
#include "api/return_values.h"
#include "api/session.h"
#include "api/tables.h"
#include "base/text.h"
#include "memory/device_memory.h"
#include "memory/pool.h"

namespace rdmacoll {
namespace {

int engine_open(int32_t rank, int32_t size, const char* job, const uint8_t* secret,
                int32_t secret_bytes, const char* arguments, rc_engine** engine, char** address,
                char** error) {
  const auto* bytes = reinterpret_cast<const std::byte*>(secret);
  std::unique_ptr<Session> session;
  const Status status = Session::open(rank, size, job, {bytes, bytes + secret_bytes},
                                      arguments == nullptr ? "" : arguments, session);
  if (status.ok()) {
    *address = copy_text(session->card());
    *engine = new rc_engine(std::move(session));
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

char* engine_profile(rc_engine* engine) { return copy_text(engine->session->profile()); }

void engine_set_profiles(rc_engine* engine, const char* const* profiles) {
  engine->session->set_profiles({profiles, profiles + engine->session->size()});
}

void engine_close(rc_engine* engine, const char* cause) {
  engine->session->close(cause == nullptr ? "" : cause);
}

void engine_free(rc_engine* engine) { delete engine; }

int engine_forward_rendezvous(rc_engine* engine) { return engine->session->forward_rendezvous(); }

void engine_topology(rc_engine* engine, int32_t out[6]) { engine->session->topology(out); }

char* engine_metrics(rc_engine* engine) {
  return copy_text(engine->session->usable().ok() ? engine->session->metrics() : "{}");
}

char* engine_describe(rc_engine* engine) { return copy_text(engine->session->describe()); }

char* engine_state(rc_engine* engine) {
  const Status usable = engine->session->usable();
  return copy_text(usable.ok() ? engine->session->state() : usable.message());
}

int engine_serve(rc_engine* engine, int64_t timeout_ms, char** left, char** error) {
  std::string causes;
  Status status = engine->session->usable();
  if (status.ok()) status = engine->session->serve(nanoseconds(timeout_ms), causes);
  if (status.ok()) *left = copy_text(causes);
  return report(status, error);
}

int engine_blame(rc_engine* engine, int32_t rank, const char* sentence, const char* cause) {
  return engine->session->blame(rank, sentence, cause) ? 1 : 0;
}

void* engine_memory_allocate(rc_engine* engine, uint64_t bytes) {
  return engine->session->pool()->lend(bytes);
}

void engine_memory_free(rc_engine* engine, void* memory) {
  if (!is_forked_child()) engine->session->pool()->free(static_cast<std::byte*>(memory));
}

using Loan = std::shared_ptr<MemoryPool>;

void end_loan(void* loan, void* memory) {
  const std::unique_ptr<Loan> pool(static_cast<Loan*>(loan));
  (*pool)->free(static_cast<std::byte*>(memory));
}

void* engine_memory_lend(rc_engine* engine, uint64_t bytes, void** loan,
                         void (**release)(void*, void*)) {
  const Loan& pool = engine->session->pool();
  std::byte* memory = pool->lend(bytes);
  if (memory == nullptr) return nullptr;
  *loan = new Loan(pool);
  *release = end_loan;
  return memory;
}

int engine_set_add(rc_engine* engine, const int32_t* ranks, int32_t n_ranks, int32_t* number,
                   char** error) {
  uint32_t added = 0;
  Status status = engine->session->usable();
  if (status.ok()) status = engine->session->add_set({ranks, ranks + n_ranks}, added);
  *number = static_cast<int32_t>(added);
  return report(status, error);
}

int engine_set_remove(rc_engine* engine, int32_t number, int64_t timeout_ms, char** error) {
  Status status = engine->session->usable();
  const auto set = static_cast<uint32_t>(number);
  if (status.ok()) status = engine->session->remove_set(set, nanoseconds(timeout_ms));
  return report(status, error);
}

int engine_set_in_flight(rc_engine* engine, int32_t number, int32_t* operations, char** error) {
  const Status status = engine->session->usable();
  const auto set = static_cast<uint32_t>(number);
  if (status.ok()) *operations = static_cast<int32_t>(engine->session->in_flight(set));
  return report(status, error);
}

int engine_timeline(rc_engine* engine, const char* path, char** error) {
  Status status = engine->session->usable();
  if (status.ok()) status = engine->session->set_timeline(path);
  return report(status, error);
}

int32_t engine_gpu_of(rc_engine* engine, const void* memory) {
  DeviceMemory* gpus = nullptr;
  Gpu gpu = kHost;
  Status status = engine->session->usable();
  if (status.ok()) status = engine->session->device_memory(gpus);
  if (status.ok()) status = gpus->find(memory, gpu);
  return status.ok() && gpu != kHost ? gpus->number_of(gpu) : -1;
}

int engine_gpu_allocate(rc_engine* engine, int32_t gpu, uint64_t bytes, rc_result** result,
                        void** memory, char** error) {
  std::shared_ptr<std::byte[]> allocated;
  Status status = engine->session->usable();
  if (status.ok()) status = engine->session->allocate(gpu, bytes, allocated);
  if (!status.ok()) return report(status, error);
  *memory = allocated.get();
  *result = new rc_result{std::move(allocated)};
  return report({}, error);
}

int engine_gpu_follow(rc_engine* engine, int32_t gpu, uint64_t stream, uint64_t follower,
                      char** error) {
  DeviceMemory* memory = nullptr;
  Status status = engine->session->device_memory(memory);
  Gpu found = kHost;
  if (status.ok()) status = memory->use(gpu, found);
  if (status.ok()) status = memory->follow(found, stream, follower);
  return report(status, error);
}

int engine_gpu_copy(rc_engine* engine, int32_t gpu, uint64_t stream, int32_t to_host, int32_t n,
                    void* const* on_gpu, void* const* on_host, const uint64_t* bytes,
                    char** error) {
  std::vector<HostCopy> copies;
  for (int32_t i = 0; i < n; ++i) {
    copies.push_back(
        {static_cast<std::byte*>(on_gpu[i]), static_cast<std::byte*>(on_host[i]), bytes[i]});
  }
  Status status = engine->session->usable();
  const CopyTo to = to_host != 0 ? CopyTo::host : CopyTo::gpu;
  if (status.ok()) status = engine->session->copy(copies, to, gpu, stream);
  return report(status, error);
}

void engine_gpu_free(rc_engine* engine, rc_result* result, uint64_t stream) {
  if (is_forked_child()) return;
  const std::unique_ptr<rc_result> given(result);
  DeviceMemory* gpus = nullptr;
  if (stream != 0 && engine->session->device_memory(gpus).ok()) {
    gpus->retire(std::move(given->memory), stream);
  }
}

}  // namespace

const rc_engine_api kEngineApi{
    .open = engine_open,
    .node = engine_node,
    .start = engine_start,
    .close = engine_close,
    .free = engine_free,
    .forward_rendezvous = engine_forward_rendezvous,
    .topology = engine_topology,
    .metrics = engine_metrics,
    .describe = engine_describe,
    .state = engine_state,
    .serve = engine_serve,
    .blame = engine_blame,
    .memory_allocate = engine_memory_allocate,
    .memory_free = engine_memory_free,
    .memory_lend = engine_memory_lend,
    .set_add = engine_set_add,
    .set_remove = engine_set_remove,
    .set_in_flight = engine_set_in_flight,
    .timeline = engine_timeline,
    .gpu_of = engine_gpu_of,
    .gpu_allocate = engine_gpu_allocate,
    .gpu_free = engine_gpu_free,
    .profile = engine_profile,
    .set_profiles = engine_set_profiles,
    .gpu_follow = engine_gpu_follow,
    .gpu_copy = engine_gpu_copy,
};

}  // namespace rdmacoll
