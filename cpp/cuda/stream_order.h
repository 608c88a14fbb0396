// The order between callers' streams and the engine. On a caller's stream the engine only records
// an event, and lets the stream wait for the engine's own.
#pragma once

#include <memory>

#include "cuda/event_pool.h"
#include "cuda/sleeper.h"
#include "memory/stream_order.h"

namespace rdmacoll::cuda {

class StreamOrders {
 public:
  StreamOrders(std::shared_ptr<Gpus> gpus, std::shared_ptr<EventPool> events,
               std::shared_ptr<Sleeper> sleeper);

  // Notes the work that the stream has now. Streams are numbered as in DLPack: 1 is the legacy
  // default stream of `gpu`, 2 its per-thread one, and others are handles. 0 is refused, since it
  // does not say which. A stream that a CUDA graph captures is refused, too. Any thread may call
  // it.
  Status record(uint64_t stream, Gpu gpu, std::shared_ptr<StreamOrder>& order);
  // As in DeviceMemory.
  Status follow(Gpu gpu, uint64_t stream, uint64_t follower);
  // The GPU of a stream. Streams 1 and 2 belong to the GPU that is current in this thread.
  Status find_gpu(uint64_t stream, Gpu& gpu);

 private:
  class Order;
  struct Shared {  // outlives the engine with the last order
    std::shared_ptr<Gpus> gpus;
    std::shared_ptr<EventPool> events;
    std::shared_ptr<Sleeper> sleeper;
    WakeStreams wake_streams;
  };

  Status record(uint64_t stream, Gpu gpu, std::shared_ptr<Order>& order);
  Status find_context(uint64_t stream, Gpu gpu, ContextHandle& context) const;

  const std::shared_ptr<Shared> shared_;
};

}  // namespace rdmacoll::cuda
