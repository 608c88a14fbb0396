#include "cuda_sim/streams.h"

#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>

#include "cuda_sim/contexts.h"

namespace rdmacoll::cuda_sim {
namespace {

thread_local bool is_in_host_function = false;

long setting_or(const char* name, long otherwise) {
  const char* text = std::getenv(name);
  return text ? std::atol(text) : otherwise;
}

// Signals are for the program's own threads.
void block_signals() {
  sigset_t all;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, nullptr);
}

}  // namespace

bool in_host_function() { return is_in_host_function; }

Scheduler::Scheduler(std::mutex& mutex)
    : mutex_(mutex),
      random_(static_cast<uint64_t>(setting_or("CUDA_SIM_SEED", 1))),
      delay_us_(static_cast<int>(setting_or("CUDA_SIM_DELAY_US", 200))) {}

std::shared_ptr<Stream> Scheduler::create(Context* context, bool is_blocking) {
  auto stream = std::make_shared<Stream>();
  stream->context = context;
  stream->is_blocking = is_blocking;
  streams_.push_back(stream);
  return stream;
}

void Scheduler::start() {
  if (!threads_.empty() || has_ended_) return;
  threads_.emplace_back([this] { work(); });
  threads_.emplace_back([this] { call_host_functions(); });
}

void Scheduler::end() {
  {
    const std::lock_guard lock(mutex_);
    has_ended_ = true;
    changed_.notify_all();
  }
  for (std::thread& thread : threads_) thread.join();
}

void Scheduler::submit(Stream& stream, Work work) {
  start();
  work.number = next_number_++;
  stream.queue.push_back(std::move(work));
  changed_.notify_all();
}

void Scheduler::wait(std::unique_lock<std::mutex>& lock, const std::function<bool()>& condition) {
  changed_.wait(lock, [&] { return has_ended_ || condition(); });
}

bool Scheduler::is_ready(const Stream& stream) const {
  if (stream.queue.empty() || stream.is_busy) return false;
  const Work& first = stream.queue.front();
  if (first.awaits && !first.awaits->has_passed) return false;
  if (!stream.is_blocking) return true;
  return std::none_of(streams_.begin(), streams_.end(), [&](const auto& other) {
    return other.get() != &stream && other->context == stream.context && other->is_blocking &&
           (stream.is_legacy || other->is_legacy) && !other->queue.empty() &&
           other->queue.front().number < first.number;
  });
}

std::vector<Stream*> Scheduler::ready() const {
  std::vector<Stream*> found;
  for (const auto& stream : streams_) {
    if (is_ready(*stream)) found.push_back(stream.get());
  }
  return found;
}

void Scheduler::carry_out(Stream& stream) {
  Work& first = stream.queue.front();
  if (first.host_function) {
    stream.is_busy = true;
    const auto self = std::find_if(streams_.begin(), streams_.end(),
                                   [&](const auto& one) { return one.get() == &stream; });
    host_streams_.push_back(*self);
    return;
  }
  const bool is_well = !first.run || first.run();
  if (!is_well) {
    stream.context->error = cuda::kIllegalAddress;
    drop(stream.context);
    return;
  }
  if (first.records) first.records->has_passed = true;
  stream.queue.pop_front();
  std::erase_if(streams_, [](const auto& one) {
    return one->is_destroyed && one->queue.empty() && !one->is_busy;
  });
}

bool Scheduler::step() {
  const std::vector<Stream*> found = ready();
  if (found.empty()) return false;
  carry_out(*found[random_() % found.size()]);
  changed_.notify_all();
  return true;
}

void Scheduler::work() {
  block_signals();
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return has_ended_ || (!is_held_ && !ready().empty()); });
    if (has_ended_) return;
    if (delay_us_ > 0 && random_() % 4 == 0) {
      const auto delay = std::chrono::microseconds(random_() % static_cast<unsigned>(delay_us_));
      lock.unlock();
      std::this_thread::sleep_for(delay);
      lock.lock();
      if (is_held_) continue;
    }
    step();
  }
}

void Scheduler::call_host_functions() {
  block_signals();
  is_in_host_function = true;
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return has_ended_ || !host_streams_.empty(); });
    if (has_ended_) return;
    const std::shared_ptr<Stream> stream = host_streams_.front();
    host_streams_.pop_front();
    if (stream->queue.empty()) continue;  // dropped meanwhile
    const auto function = stream->queue.front().host_function;
    void* const argument = stream->queue.front().host_argument;
    lock.unlock();
    function(argument);
    lock.lock();
    stream->is_busy = false;
    if (!stream->queue.empty()) stream->queue.pop_front();
    changed_.notify_all();
  }
}

void Scheduler::drop(Context* context) {
  for (const auto& stream : streams_) {
    if (stream->context != context) continue;
    for (const Work& work : stream->queue) {
      if (work.records) work.records->has_passed = true;  // streams of other contexts go on
    }
    stream->queue.clear();
  }
  changed_.notify_all();
}

void Scheduler::forget(const Context* context) {
  std::erase_if(streams_, [&](const auto& one) { return one->context == context; });
}

bool Scheduler::has_work(const Context* context) const {
  return std::any_of(streams_.begin(), streams_.end(), [&](const auto& one) {
    return one->context == context && !one->queue.empty();
  });
}

bool Scheduler::runs_host_function(const Context* context) const {
  return std::any_of(streams_.begin(), streams_.end(),
                     [&](const auto& one) { return one->context == context && one->is_busy; });
}

bool Scheduler::touches(Span span) const {
  for (const auto& stream : streams_) {
    for (const Work& work : stream->queue) {
      for (const Span& one : work.touches) {
        if (one.overlaps(span)) return true;
      }
    }
  }
  return false;
}

void Scheduler::hold(bool is_held) {
  is_held_ = is_held;
  changed_.notify_all();
}

std::size_t Scheduler::queued() const {
  std::size_t count = 0;
  for (const auto& stream : streams_) count += stream->queue.size();
  return count;
}

std::size_t Scheduler::live() const {
  return static_cast<std::size_t>(
      std::count_if(streams_.begin(), streams_.end(),
                    [](const auto& one) { return !one->is_default && !one->is_destroyed; }));
}

}  // namespace rdmacoll::cuda_sim
