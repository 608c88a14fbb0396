#include "transport/rdma/stages.h"

#include <algorithm>
#include <utility>

#include "base/text.h"

namespace rdmacoll::rdma {
namespace {

// Staging buffers, both directions together, take at most the pool divided by this.
constexpr std::size_t kStageShare = 8;
constexpr uint32_t kStages = 16;  // in each direction
constexpr std::size_t kStageBytesMin = 4 << 10;
constexpr std::size_t kStageBytesMax = 1 << 20;

uint32_t stage_bytes(std::size_t pool_bytes) {
  return static_cast<uint32_t>(std::clamp(pool_bytes / kStageShare / (2 * kStages) / 4096 * 4096,
                                          kStageBytesMin, kStageBytesMax));
}

}  // namespace

Stages::Stages(MemoryPool& pool, std::span<Device* const> devices, Transport::Counters& counters)
    : pool_(pool), devices_(devices), bytes_(stage_bytes(pool.size())), counters_(counters) {}

Stages::~Stages() {
  registered_ = {};  // deregister before the memory has another owner
  pool_.free(memory_);
}

Status Stages::make() {
  const std::size_t bytes = std::size_t{kStages} * bytes_;
  memory_ = pool_.allocate(bytes);
  if (memory_ == nullptr) return pool_exhausted(pool_, bytes, " to copy through");
  if (Status status = registered_.open(devices_, memory_, bytes, counters_); !status.ok()) {
    // Reset the state, so that the next peer that needs a buffer gets the same error.
    registered_ = {};
    pool_.free(std::exchange(memory_, nullptr));
    return status;
  }
  for (uint32_t i = kStages; i-- > 0;) free_.push_back(static_cast<uint16_t>(i));
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
