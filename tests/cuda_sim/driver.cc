#include "cuda_sim/driver.h"

#include <unistd.h>

#include <cstdio>
#include <cstdlib>

namespace rdmacoll::cuda_sim {
namespace {

// Writes the counters: CUDA_SIM_LOG=PREFIX makes PREFIX.<process id>.json.
void write_counters() {
  const char* prefix = std::getenv("CUDA_SIM_LOG");
  Driver& all = driver();
  if (!prefix) return;
  const std::string name = std::string(prefix) + "." + std::to_string(getpid()) + ".json";
  const std::lock_guard lock(all.mutex);
  if (std::FILE* file = std::fopen(name.c_str(), "w")) {
    std::fputs(all.counters().c_str(), file);
    std::fclose(file);
  }
}

// A sanitizer looks for leaks after this, and may crash if it meets threads at work.
void end_with_process() {
  if (driver().process != getpid()) return;
  driver().scheduler.end();
  write_counters();
}

}  // namespace

Driver& driver() {
  static Driver* const driver = new Driver;
  return *driver;
}

Context* Driver::context(cuda::ContextHandle handle) const {
  for (const auto& one : contexts) {
    if (one->handle() == handle) return one.get();
  }
  return nullptr;
}

Event* Driver::event(cuda::EventHandle handle) const {
  const auto found = events.find(handle);
  return found == events.end() ? nullptr : found->second.get();
}

std::map<std::string, long long> Driver::live_counts() const {
  const auto number = [](std::size_t value) { return static_cast<long long>(value); };
  long long retained = 0;
  for (const auto& one : contexts) retained += one->retained;
  return {{"live allocations", number(memory.allocations())},
          {"live bytes", number(memory.bytes())},
          {"live pinned", number(memory.pinned())},
          {"live imports", number(memory.imported())},
          {"live streams", number(scheduler.live())},
          {"live events", number(events.size())},
          {"live modules", number(modules.size())},
          {"retained contexts", retained},
          {"live pins of GDRCopy", number(gdr.pins.size())},
          {"queued", number(scheduler.queued())}};
}

Call::Call(const char* name, Needs needs)
    : name_(name), driver_(cuda_sim::driver()), lock_(driver_.mutex, std::defer_lock) {
  // A forked child has the memory of its parent, and none of the driver's threads. One of them may
  // have held the lock.
  if (driver_.initialized_in != 0 && driver_.initialized_in != getpid()) {
    refusal_ = cuda::kNotInitialized;
    return;
  }
  lock_.lock();
  if (!driver_.machine) {
    driver_.machine = machine_of_environment();
    driver_.process = getpid();
    std::atexit(end_with_process);
  }
  driver_.log.count(std::string("calls ") + name_);
  refusal_ = check(needs);
}

Result Call::check(Needs needs) {
  if (in_host_function()) {
    misuse("a host function may not call CUDA.");
    return cuda::kNotPermitted;
  }
  const auto always = driver_.machine->failures.find(name_);
  if (always != driver_.machine->failures.end()) return always->second;
  const auto planned = driver_.failures.find(std::string_view(name_));
  if (planned != driver_.failures.end() && planned->second.calls_before-- == 0) {
    const Result result = planned->second.result;
    driver_.failures.erase(planned);
    return result;
  }
  if (needs == Needs::nothing) return cuda::kSuccess;
  if (driver_.initialized_in == 0) return cuda::kNotInitialized;
  if (needs == Needs::init) return cuda::kSuccess;
  if (context_stack().empty() || !context_stack().back()) return cuda::kInvalidContext;
  context_ = context_stack().back();
  if (context_->retained == 0) return cuda::kContextIsDestroyed;
  return needs == Needs::context ? context_->error : cuda::kSuccess;
}

Stream* Call::stream(cuda::StreamHandle handle) {
  const auto number = reinterpret_cast<std::uintptr_t>(handle);
  if (number <= cuda::kLegacyStream) return context_->legacy.get();
  if (number == cuda::kPerThreadStream) {
    std::shared_ptr<Stream>& found = context_->per_thread[std::this_thread::get_id()];
    if (!found) {
      found = driver_.scheduler.create(context_, true);
      found->is_default = true;
    }
    return found.get();
  }
  const auto found = driver_.streams.find(handle);
  if (found == driver_.streams.end() || found->second->context != context_) return nullptr;
  return found->second.get();
}

Stream* Call::any_stream(cuda::StreamHandle handle) {
  const auto found = driver_.streams.find(handle);
  if (found != driver_.streams.end()) return found->second.get();
  if (reinterpret_cast<std::uintptr_t>(handle) > cuda::kPerThreadStream) return nullptr;
  if (context_stack().empty() || !context_stack().back()) return nullptr;
  context_ = context_stack().back();
  return stream(handle);
}

Result Call::submit(Stream& stream, Work work) {
  if (stream.capture != cuda::kCaptureNone) return cuda::kStreamCaptureUnsupported;
  const bool is_order = work.records || work.awaits;
  if (stream.is_default) {
    driver_.log.count(is_order ? "order on default streams" : "work on default streams");
  }
  if (stream.context->error != cuda::kSuccess) {
    // As measured: these succeed after an error, and never happen.
    if (work.records) work.records->has_passed = true;
    return work.host_function || is_order ? cuda::kSuccess : stream.context->error;
  }
  driver_.gdr.land(driver_.memory);
  driver_.scheduler.submit(stream, std::move(work));
  return cuda::kSuccess;
}

Result Call::wait_for(Stream& stream) {
  if (stream.capture != cuda::kCaptureNone) return cuda::kStreamCaptureUnsupported;
  driver_.gdr.land(driver_.memory);
  const Context& context = *stream.context;
  wait([&] { return stream.queue.empty() || context.error != cuda::kSuccess; });
  return context.error;
}

}  // namespace rdmacoll::cuda_sim
