#include "unit/scripted_cuda.h"

#include <cstdlib>

#include "base/text.h"

namespace rdmacoll::cuda_test {

ScriptedCuda* ScriptedCuda::now = nullptr;

ScriptedCuda::ScriptedCuda(int gpus) {
  RC_ASSERT(now == nullptr, "one at a time");
  now = this;
  for (int i = 0; i < gpus; ++i) {
    devices.push_back({.uuid = static_cast<unsigned char>(0x10 + i)});
    contexts.push_back({i});
  }
  driver_ = std::make_unique<Driver>(functions());
  RC_ASSERT(driver_->initialize().ok());
}

ScriptedCuda::~ScriptedCuda() {
  current().clear();
  now = nullptr;
}

std::vector<Context*>& ScriptedCuda::current() {
  static thread_local std::vector<Context*> stack;
  return stack;
}

bool ScriptedCuda::is_current(const Context* context) const {
  return !current().empty() && current().back() == context;
}

int& ScriptedCuda::capture_mode() {
  static thread_local int mode = 0;
  return mode;
}

Result ScriptedCuda::called(const char* name) {
  ++calls[name];
  const std::string_view call = name;
  const bool is_safe = call != "cuEventQuery" && call != "cuEventCreate" && call != "cuMemAlloc" &&
                       call != "cuStreamCreate" && call != "cuMemHostRegister";
  if (is_captured && !is_safe && capture_mode() != kCaptureRelaxed) return kStreamCaptureUnsafe;
  return fails.of(name);
}

int ScriptedCuda::count(const std::string& call) {
  const std::lock_guard lock(mutex);
  return calls[call];
}

void Failures::Entry::operator=(Result result) {
  const std::lock_guard lock(all_.mutex_);
  all_.results_[name_] = result;
}

Failures& Failures::operator=(Results results) {
  const std::lock_guard lock(mutex_);
  results_ = std::move(results);
  return *this;
}

Result Failures::of(const std::string& name) const {
  const std::lock_guard lock(mutex_);
  const auto found = results_.find(name);
  return found == results_.end() ? kSuccess : found->second;
}

Stream* ScriptedCuda::stream(StreamHandle handle) {
  const auto number = reinterpret_cast<uintptr_t>(handle);
  if (number > kPerThreadStream) return reinterpret_cast<Stream*>(handle);
  RC_ASSERT(!current().empty(), "a default stream without a context");
  return &default_stream(number, current().back()->ordinal);
}

Stream& ScriptedCuda::default_stream(uint64_t number, int ordinal) {
  auto& stream = default_streams_[{ordinal, number}];
  if (stream == nullptr) {
    stream = std::make_unique<Stream>();
    stream->context = &contexts.at(static_cast<std::size_t>(ordinal));
    stream->is_default = true;
  }
  return *stream;
}

StreamHandle ScriptedCuda::stream_of_caller(int ordinal) {
  streams.push_back(std::make_unique<Stream>());
  streams.back()->context = &contexts.at(static_cast<std::size_t>(ordinal));
  return reinterpret_cast<StreamHandle>(streams.back().get());
}

Result ScriptedCuda::enqueue(const char* name, StreamHandle handle, Work work) {
  Stream* const on = stream(handle);
  if (on->is_default) note(cat(name, " on a default stream"));
  if (!is_current(on->context)) {
    note(cat(name, " without the context of its stream"));
    return kInvalidContext;
  }
  on->queue.push_back(std::move(work));
  return kSuccess;
}

bool ScriptedCuda::step(Stream& stream) {
  if (stream.queue.empty() || !stream.queue.front().run()) return false;
  stream.queue.pop_front();
  return true;
}

bool ScriptedCuda::run() {
  const std::lock_guard lock(mutex);
  return run_with_lock();
}

bool ScriptedCuda::run_with_lock() {
  bool moved = false;
  for (bool more = true; more;) {
    more = false;
    for (const auto& stream : streams) {
      while (step(*stream)) more = true;
    }
    for (const auto& [place, stream] : default_streams_) {
      while (step(*stream)) more = true;
    }
    moved |= more;
  }
  return moved;
}

std::byte* ScriptedCuda::place(std::size_t bytes, int ordinal, MemoryType type, bool is_managed) {
  const std::lock_guard lock(mutex);
  // Zeros that take no memory before somebody touches them.
  blocks_.emplace_back(static_cast<std::byte*>(std::calloc(bytes, 1)), &std::free);
  std::byte* const block = blocks_.back().get();
  memory[reinterpret_cast<Address>(block)] = {bytes, type, is_managed, ordinal, next_id_++};
  return block;
}

}  // namespace rdmacoll::cuda_test
