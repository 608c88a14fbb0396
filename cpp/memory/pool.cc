#include "memory/pool.h"

#include <fcntl.h>
#include <linux/falloc.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>
#include <optional>

#include "base/text.h"
#include "memory/free_extents.h"
#include "memory/page.h"
#include "memory/placement.h"
#include "memory/private_view.h"

namespace rdmacoll {
namespace {

// Smaller pieces share pages.
constexpr std::size_t kPagedBytesMin = 4096;
constexpr std::size_t kLineBytes = 64;
// If enough freed pages are kept, a free of this size returns its pages to the system. For less,
// the call costs more than the memory.
constexpr std::size_t kGiveBackBytes = std::size_t{1} << 20;

class Arena final : public MemoryPool {
 public:
  Arena(Fd fd, PoolMapping mapping)
      : fd_(std::move(fd)),
        mapping_(std::make_shared<const PoolMapping>(std::move(mapping))),
        base_(mapping_->shared.data()),
        bytes_(mapping_->shared.bytes()),
        owner_(::getpid()),
        free_(bytes_) {}
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  std::byte* allocate(std::size_t bytes) override { return take(bytes, false); }
  std::byte* lend(std::size_t bytes) override { return take(bytes, true); }
  void free(std::byte* memory) override;
  void touch(std::byte* memory, std::size_t bytes) override { std::memset(memory, 0, bytes); }
  void keep_pages() override {
    const std::lock_guard lock(mutex_);
    keeps_pages_ = true;
  }

  void shrink(std::size_t bytes) override {
    const std::lock_guard lock(mutex_);
    RC_ASSERT(used_ == 0 && bytes <= bytes_ && bytes >= page_bytes(), cat(bytes, " of ", bytes_));
    bytes_ = bytes / page_bytes() * page_bytes();
    free_ = FreeExtents(bytes_);
  }

  bool contains(const void* memory, std::size_t bytes) const override {
    const auto address = reinterpret_cast<uintptr_t>(memory);
    const auto first = reinterpret_cast<uintptr_t>(base_);
    return address >= first && address - first <= bytes_ && bytes <= bytes_ - (address - first);
  }
  std::byte* base() const override { return base_; }
  std::size_t size() const override { return bytes_; }
  std::size_t used() const override {
    const std::lock_guard lock(mutex_);
    return used_;
  }
  int fd() const override { return fd_.get(); }
  std::byte* view() const override { return mapping_->view.data(); }
  std::shared_ptr<const void> mapping() const override { return mapping_; }

 private:
  // A forked child maps the same pages, so its allocations would overlap the parent's. Checked
  // before the lock, since another thread may have held it during the fork.
  bool is_in_child() const { return ::getpid() != owner_; }
  std::byte* take(std::size_t bytes, bool is_lent);
  void give_back(std::size_t offset, std::size_t bytes);
  // The number of freed bytes that may keep their pages.
  std::size_t kept_bytes_max() const { return keeps_pages_ ? bytes_ : bytes_ / 4; }

  const Fd fd_;
  const std::shared_ptr<const PoolMapping> mapping_;
  std::byte* const base_;
  std::size_t bytes_;  // constant once something is allocated
  const pid_t owner_;
  mutable std::mutex mutex_;
  FreeExtents free_;
  struct Piece {
    std::size_t bytes;
    bool is_lent;
  };
  std::map<std::size_t, Piece> live_;
  std::size_t used_ = 0;
  std::size_t lent_ = 0;
  bool keeps_pages_ = false;
  std::size_t kept_ = 0;  // freed bytes that may still have pages, at most
};

std::byte* Arena::take(std::size_t bytes, bool is_lent) {
  if (bytes > bytes_ || is_in_child()) return nullptr;
  const std::size_t unit = bytes >= kPagedBytesMin ? page_bytes() : kLineBytes;
  const std::size_t wanted = bytes == 0 ? kLineBytes : round_up(bytes, unit);
  const std::lock_guard lock(mutex_);
  if (is_lent && lent_ + wanted > bytes_ / 2) return nullptr;
  const std::optional<std::size_t> first = free_.take(wanted, unit);
  if (!first) return nullptr;
  live_[*first] = {wanted, is_lent};
  used_ += wanted;
  if (is_lent) lent_ += wanted;
  kept_ -= std::min(kept_, wanted);
  return base_ + *first;
}

void Arena::free(std::byte* memory) {
  if (memory == nullptr || is_in_child()) return;
  RC_ASSERT(contains(memory, 1), "freed memory is not of this pool");
  const std::lock_guard lock(mutex_);
  const auto found = live_.find(static_cast<std::size_t>(memory - base_));
  RC_ASSERT(found != live_.end(), cat("nothing is allocated at offset ", memory - base_));
  const std::size_t offset = found->first;
  const std::size_t length = found->second.bytes;
  if (found->second.is_lent) lent_ -= length;
  live_.erase(found);
  used_ -= length;
  // Pages go back before another caller can get them.
  if (length >= kGiveBackBytes && kept_ + length > kept_bytes_max()) {
    give_back(offset, length);
  } else {
    kept_ += length;
  }
  free_.give_back(offset, length);
}

void Arena::give_back(std::size_t offset, std::size_t bytes) {
  // A failure costs memory, not correctness.
  [[maybe_unused]] const int result =
      ::fallocate(fd_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(offset),
                  static_cast<off_t>(bytes));
}

}  // namespace

Status pool_exhausted(const MemoryPool& pool, std::size_t bytes, std::string_view use,
                      std::string_view cure) {
  return {Code::failed,
          cat("the buffer pool of ", bytes_text(pool.size()), " has no ", bytes_text(bytes),
              " left", use, " (", bytes_text(pool.used()), " in use). ", cure)};
}

Status MemoryPool::create(std::size_t bytes, std::unique_ptr<MemoryPool>& pool) {
  const std::size_t size = round_up(bytes, page_bytes());
  RC_ASSERT(bytes > 0 && size >= bytes, cat("a pool of ", bytes, " bytes"));
  Fd fd;
  PoolMapping mapping;
  Status made = create_shared("rdmacoll", size, fd);
  if (made.ok()) made = map_pool(fd.get(), size, mapping);
  if (!made.ok()) {
    return {Code::failed,
            cat("cannot make a buffer pool of ", bytes_text(size), ": ", made.message(),
                ". Lower RDMACOLL_BUF_SIZE (TF_RDMA_BUF_SIZE), or raise the limit.")};
  }
  pool = std::make_unique<Arena>(std::move(fd), std::move(mapping));
  return {};
}

}  // namespace rdmacoll
