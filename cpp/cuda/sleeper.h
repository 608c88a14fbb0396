// Wakes the sleeping engine when events pass. A host function behind an event calls the waker.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <tuple>
#include <vector>

#include "base/log.h"
#include "cuda/gpus.h"

namespace rdmacoll::cuda {

// The engine's thread, as threads of the driver know it.
class Sleeper {
 public:
  Sleeper(std::function<void()> wake, Log log) : wake_(std::move(wake)), log_(log) {}

  // From now on the next event wakes. Call it before the last look at the events.
  void arm() { is_armed_.store(true); }
  void notify();
  // The driver refuses to notify it, which is said once.
  void say_not_notified(const Status& status);
  // No call of the waker begins or goes on after this one.
  void close();

 private:
  std::atomic<bool> is_armed_{false};
  std::mutex mutex_;
  std::function<void()> wake_;
  const Log log_;
  std::atomic<bool> has_logged_{false};
};

// A stream of the engine that only waits for events.
class WakeStream {
 public:
  WakeStream() = default;
  ~WakeStream() { close(); }
  WakeStream(const WakeStream&) = delete;
  WakeStream& operator=(const WakeStream&) = delete;

  // Notifies the sleeper when the event passes, as it was recorded last. Earlier events of this
  // stream come first. No call comes after a fault of the GPU.
  Status notify_after(const Gpus& gpus, Gpu gpu, EventHandle event,
                      const std::shared_ptr<Sleeper>& sleeper);
  void close();

 private:
  const Gpus* gpus_ = nullptr;  // null: there is no stream yet
  Gpu gpu_ = kHost;
  StreamHandle stream_ = nullptr;
};

// Wake streams for events on callers' streams. Events of one stream share a wake stream, since they
// pass in their order. Other streams have one of their own, so none delays another's wake-up. Any
// thread may call it.
class WakeStreams {
 public:
  // The stream's number, its GPU, and for the stream that each thread has, the thread.
  using Key = std::tuple<uint64_t, Gpu, std::thread::id>;

  // Does what WakeStream::notify_after() does, for an event on the stream `key`. After success,
  // call release() once the event has passed (`has_passed`) or is no longer needed.
  Status notify_after(const Key& key, const Gpus& gpus, EventHandle event,
                      const std::shared_ptr<Sleeper>& sleeper);
  void release(const Key& key, bool has_passed);

 private:
  struct Used {
    std::unique_ptr<WakeStream> stream;
    int events = 0;
    bool may_wait = false;  // for an event that was not needed any more
  };

  void leave(const Key& key, bool has_passed);

  std::mutex mutex_;
  std::map<Key, Used> used_;
  std::map<Gpu, std::vector<std::unique_ptr<WakeStream>>> idle_;
};

}  // namespace rdmacoll::cuda
