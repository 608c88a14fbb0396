#include "cuda_sim/cuda_sim.h"
#include "cuda_sim/driver.h"
#include "cuda_sim/exports.h"

namespace rdmacoll::cuda_sim {

extern "C" {

RC_SIM_EXPORT const char* cuda_sim_counters() {
  thread_local std::string text;
  const std::lock_guard lock(driver().mutex);
  text = driver().counters();
  return text.c_str();
}

RC_SIM_EXPORT long long cuda_sim_count(const char* name) {
  const std::lock_guard lock(driver().mutex);
  const auto live = driver().live_counts();
  const auto found = live.find(name);
  return found == live.end() ? driver().log.value(name) : found->second;
}

RC_SIM_EXPORT void cuda_sim_reset_counters() {
  const std::lock_guard lock(driver().mutex);
  driver().log.reset();
}

RC_SIM_EXPORT void cuda_sim_hold(int is_held) {
  const std::lock_guard lock(driver().mutex);
  driver().scheduler.hold(is_held != 0);
}

RC_SIM_EXPORT int cuda_sim_step() {
  const std::lock_guard lock(driver().mutex);
  return driver().scheduler.step() ? 1 : 0;
}

RC_SIM_EXPORT void cuda_sim_fail(const char* function, int result, int calls_before) {
  const std::lock_guard lock(driver().mutex);
  driver().failures[function] = {result, calls_before};
}

RC_SIM_EXPORT void cuda_sim_break(int gpu) {
  const std::lock_guard lock(driver().mutex);
  Context& context = *driver().contexts.at(gpu);
  context.error = kIllegalAddress;
  driver().scheduler.drop(&context);
}

RC_SIM_EXPORT void* cuda_sim_bytes(unsigned long long address, std::size_t bytes) {
  const std::lock_guard lock(driver().mutex);
  int gpu = -1;
  std::byte* const found = driver().memory.translate(address, bytes, gpu);
  return gpu < 0 ? nullptr : found;
}

RC_SIM_EXPORT int cuda_sim_gpu(unsigned long long address) {
  const std::lock_guard lock(driver().mutex);
  const Allocation* const found = driver().memory.find(address);
  return found ? found->owner : -1;
}

RC_SIM_EXPORT int cuda_sim_take_bar1(int gpu, long long bytes) {
  const std::lock_guard lock(driver().mutex);
  Driver& all = driver();
  long long& taken = all.bar1_taken[all.machine->visible.at(gpu)];
  if (taken + bytes > static_cast<long long>(all.facts(gpu).bar1_bytes)) return 0;
  taken += bytes;
  return 1;
}

RC_SIM_EXPORT void cuda_sim_on_flush(void (*function)(int gpu, void* context), void* context) {
  const std::lock_guard lock(driver().mutex);
  driver().on_flush.push_back({function, context});
}

}  // extern "C"
}  // namespace rdmacoll::cuda_sim
