#include "transport/rdma/stages.h"

#include <utility>

#include "base/text.h"

namespace rdmacoll::rdma {

Stages::~Stages() {
  registered_ = {};  // deregister before the memory has another owner
  pool_.free(memory_);
}

Status Stages::make() {
  const std::size_t bytes = std::size_t{count_} * bytes_;
  memory_ = pool_.allocate(bytes);
  if (memory_ == nullptr) return pool_exhausted(pool_, bytes, " to copy through");
  if (Status status = registered_.open(devices_, memory_, bytes, counters_); !status.ok()) {
    // Reset the state, so that the next peer that needs a buffer gets the same error.
    registered_ = {};
    pool_.free(std::exchange(memory_, nullptr));
    return status;
  }
  for (uint32_t i = count_; i-- > 0;) free_.push_back(static_cast<uint16_t>(i));
  return {};
}

bool Stages::take(uint16_t& index, Status& status) {
  if (memory_ == nullptr) status = make();
  if (!status.ok() || free_.empty()) return false;
  index = free_.back();
  free_.pop_back();
  return true;
}

}  // namespace rdmacoll::rdma
