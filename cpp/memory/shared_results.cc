#include "memory/shared_results.h"

#include <unistd.h>

#include <atomic>
#include <new>
#include <utility>

#include "memory/private_view.h"

namespace rdmacoll {
namespace {

constexpr std::size_t kResultAlignment = 64;

using Holders = std::atomic<uint32_t>;
static_assert(Holders::is_always_lock_free, "shared by processes");
static_assert(sizeof(Holders) <= kResultOffset);

Holders& holders_of(std::byte* block) { return *std::launder(reinterpret_cast<Holders*>(block)); }

class Hold {
 public:
  Hold(const ResultBlock& block, std::shared_ptr<const void> mapping)
      : block_(block), mapping_(std::move(mapping)), owner_(::getpid()) {}
  Hold(const Hold&) = delete;
  Hold& operator=(const Hold&) = delete;
  // The release order keeps this rank's reads of the results before the decrement.
  ~Hold() {
    if (::getpid() != owner_) return;
    forget_writes(block_.view, block_.bytes);
    holders_of(block_.shared).fetch_sub(1, std::memory_order_release);
  }

 private:
  const ResultBlock block_;
  const std::shared_ptr<const void> mapping_;
  const pid_t owner_;
};

}  // namespace

ResultOffsets::ResultOffsets(std::span<const uint64_t> bytes) {
  for (const uint64_t each : bytes) {
    offsets_.push_back(block_bytes_);
    block_bytes_ += (each + kResultAlignment - 1) / kResultAlignment * kResultAlignment;
  }
}

Status hold_results(const ResultBlock& block, std::shared_ptr<const void> mapping,
                    std::shared_ptr<void>& hold) {
  RC_RETURN_IF_ERROR(allow_writes(block.view, block.bytes));
  hold = std::make_shared<Hold>(block, std::move(mapping));
  return {};
}

void SharedResults::take_back() {
  std::erase_if(lent_, [this](std::byte* block) {
    if (holders_of(block).load(std::memory_order_acquire) > 0) return false;
    pool_.free(block);
    return true;
  });
}

std::byte* SharedResults::lend(std::size_t block_bytes, uint32_t ranks) {
  take_back();
  std::byte* const block = pool_.lend(block_bytes);
  if (block == nullptr) return nullptr;
  new (block) Holders(ranks);
  lent_.push_back(block);
  return block;
}

}  // namespace rdmacoll
