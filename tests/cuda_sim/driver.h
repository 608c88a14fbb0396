// The state of the fake driver, and the frame of each exported function.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "cuda/driver_api.h"
#include "cuda_sim/contexts.h"
#include "cuda_sim/gdr.h"
#include "cuda_sim/ipc.h"
#include "cuda_sim/kernels.h"
#include "cuda_sim/log.h"
#include "cuda_sim/machine.h"
#include "cuda_sim/memory.h"
#include "cuda_sim/streams.h"

namespace rdmacoll::cuda_sim {

using cuda::Result;

// A result that a test asked for.
struct PlannedFailure {
  Result result = cuda::kSuccess;
  int calls_before = 0;
};

struct FlushObserver {
  void (*function)(int gpu, void* context);
  void* context;
};

struct Driver {
  std::mutex mutex;
  std::optional<Machine> machine;  // null before the first call
  pid_t process = 0;
  std::atomic<pid_t> initialized_in = 0;  // the process that called cuInit
  Memory memory;
  Scheduler scheduler{mutex};
  std::vector<std::unique_ptr<Context>> contexts;
  std::map<cuda::StreamHandle, std::shared_ptr<Stream>> streams;
  std::map<cuda::EventHandle, std::unique_ptr<Event>> events;
  std::map<cuda::ModuleHandle, std::unique_ptr<Module>> modules;
  std::map<Address, Import> imports;
  std::map<unsigned long long, CreatedMemory> created;
  std::map<std::string, PlannedFailure, std::less<>> failures;
  int nvml_count = 0;                   // calls of nvmlInit_v2 without nvmlShutdown
  std::map<int, long long> bar1_taken;  // by place in Machine::gpus
  std::vector<FlushObserver> on_flush;
  Gdr gdr;
  std::uintptr_t next_handle = 0x51000000;
  Log log;

  const GpuFacts& facts(int gpu) const { return machine->gpus.at(machine->visible.at(gpu)); }
  bool is_gpu(int gpu) const { return gpu >= 0 && gpu < static_cast<int>(contexts.size()); }
  // Returns null for a handle that is no context.
  Context* context(cuda::ContextHandle handle) const;
  Event* event(cuda::EventHandle handle) const;
  template <class Handle>
  Handle new_handle() {
    return reinterpret_cast<Handle>(next_handle += 16);
  }
  std::map<std::string, long long> live_counts() const;
  std::string counters() const { return log.json(live_counts()); }
};

// Never destroyed, since callers may use it until the process ends.
Driver& driver();

// The conditions of a call.
enum class Needs {
  nothing,  // not even cuInit
  init,
  context,         // a current context without an error
  broken_context,  // a current context, which may have an error
};

// One call of an exported function. It holds the driver's lock.
class Call {
 public:
  Call(const char* name, Needs needs);

  // The result with which the call ends at once, or success.
  Result refusal() const { return refusal_; }
  Driver& driver() { return driver_; }
  Context& context() { return *context_; }
  const char* name() const { return name_; }
  void wait(const std::function<bool()>& condition) { driver_.scheduler.wait(lock_, condition); }
  // Finds the stream for work of the current context. Null: no stream of this context.
  Stream* stream(cuda::StreamHandle handle);
  // Finds the stream for calls that need no current context.
  Stream* any_stream(cuda::StreamHandle handle);
  // Puts work into a stream, and counts it. Returns an error if the stream is captured or broken.
  Result submit(Stream& stream, Work work);
  Result wait_for(Stream& stream);
  // Waits as calls do that change memory or code of a GPU: until no kernel runs in the current
  // context. A host function stands for a kernel, since it runs as long as a test wants.
  void wait_for_kernels() {
    wait([this] { return !driver_.scheduler.runs_host_function(context_); });
  }
  void misuse(const std::string& sentence) {
    driver_.log.misuse(std::string(name_) + ": " + sentence);
  }

 private:
  Result check(Needs needs);

  const char* const name_;
  Driver& driver_;
  std::unique_lock<std::mutex> lock_;
  Context* context_ = nullptr;
  Result refusal_ = cuda::kSuccess;
};

// Runs the body of an exported function.
template <class Body>
Result in_call(const char* name, Needs needs, Body&& body) {
  Call call(name, needs);
  if (call.refusal() != cuda::kSuccess) return call.refusal();
  return body(call);
}

}  // namespace rdmacoll::cuda_sim
