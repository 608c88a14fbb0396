// A stream of the engine for the work of one direction on one GPU, and the jobs that end on it.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <utility>

#include "cuda/event_pool.h"
#include "cuda/sleeper.h"

namespace rdmacoll::cuda {

// A stream of the engine, and the jobs whose work it has. Only the holder of the baton uses it.
class Lane {
 public:
  Lane(const Gpus& gpus, Gpu gpu, std::shared_ptr<EventPool> events)
      : gpus_(gpus), gpu_(gpu), events_(std::move(events)) {}
  ~Lane();
  Lane(const Lane&) = delete;
  Lane& operator=(const Lane&) = delete;

  // Makes the stream, if there is none. Call open() and end() with the GPU's context as the current
  // one.
  Status open();
  StreamHandle stream() const { return stream_; }
  // Notes that `job` ends with the stream's present work. `what` names it in errors: "a copy".
  Status end(uint16_t job, const char* what);

  bool is_idle() const { return ends_.empty(); }
  // The event behind the present work. Null: all of it is done.
  std::shared_ptr<const SharedEvent> last() const {
    return ends_.empty() ? nullptr : ends_.back().event;
  }
  // Takes the oldest job if it has ended. `status` has its error.
  bool take_ended(uint16_t& job, Status& status);
  // Lets the end of the oldest job notify the sleeper, which is armed. False: it has ended.
  bool watch(const std::shared_ptr<Sleeper>& sleeper);

 private:
  struct End {
    std::shared_ptr<const SharedEvent> event;
    uint16_t job;
    const char* what;
    bool is_watched = false;
  };

  const Gpus& gpus_;
  const Gpu gpu_;
  const std::shared_ptr<EventPool> events_;
  StreamHandle stream_ = nullptr;
  WakeStream wake_stream_;
  std::deque<End> ends_;
};

}  // namespace rdmacoll::cuda
