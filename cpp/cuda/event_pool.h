// Events without timing, which are used again and again, so that the steady state makes none.
#pragma once

#include <map>
#include <mutex>
#include <vector>

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
  void give_back(ContextHandle context, EventHandle event);

 private:
  const Driver& driver_;
  std::mutex mutex_;
  std::map<ContextHandle, std::vector<EventHandle>> free_;
};

}  // namespace rdmacoll::cuda
