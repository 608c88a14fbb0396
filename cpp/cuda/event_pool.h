// Events without timing, which are used again and again, so that the steady state makes none.
#pragma once

#include <memory>
#include <utility>

#include "cuda/free_list.h"
#include "cuda/gpus.h"

namespace rdmacoll::cuda {

// Any thread may call it.
class EventPool {
 public:
  explicit EventPool(const Driver& driver) : driver_(driver) {}
  ~EventPool();
  EventPool(const EventPool&) = delete;
  EventPool& operator=(const EventPool&) = delete;

  // The context must be the current one.
  Status take(ContextHandle context, EventHandle& event);
  void give_back(ContextHandle context, EventHandle event) { free_.give_back(context, event); }
  const Driver& driver() const { return driver_; }

 private:
  const Driver& driver_;
  FreeList<ContextHandle, EventHandle> free_;
};

// An event of the pool. The last reference gives it back.
class SharedEvent {
 public:
  SharedEvent(std::shared_ptr<EventPool> pool, ContextHandle context, EventHandle event)
      : pool_(std::move(pool)), context_(context), event_(event) {}
  ~SharedEvent() { pool_->give_back(context_, event_); }
  SharedEvent(const SharedEvent&) = delete;
  SharedEvent& operator=(const SharedEvent&) = delete;

  EventHandle handle() const { return event_; }
  const Driver& driver() const { return pool_->driver(); }

 private:
  const std::shared_ptr<EventPool> pool_;
  const ContextHandle context_;
  const EventHandle event_;
};

}  // namespace rdmacoll::cuda
