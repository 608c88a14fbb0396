// The end of the work that lanes have: the last event of each.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "cuda/event_pool.h"
#include "memory/stream_order.h"

namespace rdmacoll::cuda {

class EndOfLanes final : public GpuEnd {
 public:
  // At least one event. Each is recorded.
  explicit EndOfLanes(std::vector<std::shared_ptr<const SharedEvent>> events)
      : events_(std::move(events)) {}

  Status passed(bool& has_passed) const override;
  // Makes a stream wait for all events. Its context must be the current one.
  Status hold(StreamHandle stream) const;

 private:
  const std::vector<std::shared_ptr<const SharedEvent>> events_;
};

}  // namespace rdmacoll::cuda
