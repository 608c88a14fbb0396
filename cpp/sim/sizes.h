// Memory without content and compute without arithmetic, for worlds too large for either.
#pragma once

#include <sys/mman.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <deque>

#include "base/link_model.h"
#include "base/system_error.h"
#include "compute/inline.h"
#include "memory/pool.h"
#include "transport/sim/sim_network.h"

namespace rdmacoll {

// Addresses without memory. An access ends the process.
class Addresses {
 public:
  explicit Addresses(std::size_t bytes) : bytes_(bytes) {
    void* const memory =
        ::mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    RC_ASSERT(memory != MAP_FAILED, error_text(errno));
    data_ = static_cast<std::byte*>(memory);
  }
  Addresses(const Addresses&) = delete;
  Addresses& operator=(const Addresses&) = delete;
  ~Addresses() { ::munmap(data_, bytes_); }

  std::byte* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }

 private:
  std::byte* data_ = nullptr;
  std::size_t bytes_;
};

// Returns each address only once. An engine allocates little more than it uses at a time.
class SizedPool final : public MemoryPool {
 public:
  explicit SizedPool(std::size_t bytes) : addresses_(4 * bytes), size_(bytes) {}

  std::byte* allocate(std::size_t bytes) override {
    const std::size_t wanted = (bytes + kUnit - 1) / kUnit * kUnit;
    if (wanted > addresses_.bytes() - next_) return nullptr;
    std::byte* const memory = addresses_.data() + next_;
    next_ += wanted;
    return memory;
  }
  std::byte* lend(std::size_t) override { return nullptr; }
  void free(std::byte*) override {}
  void keep_pages() override {}
  void shrink(std::size_t bytes) override { size_ = bytes; }
  bool contains(const void* memory, std::size_t bytes) const override {
    const auto* const from = static_cast<const std::byte*>(memory);
    return from >= base() && from + bytes <= base() + addresses_.bytes();
  }
  std::byte* base() const override { return addresses_.data(); }
  std::size_t size() const override { return size_; }
  std::size_t used() const override { return next_; }
  int fd() const override { return -1; }
  std::byte* view() const override { return nullptr; }
  std::shared_ptr<const void> mapping() const override { return nullptr; }

 private:
  static constexpr std::size_t kUnit = 4096;

  Addresses addresses_;
  std::size_t size_;
  std::size_t next_ = 0;
};

// Each job occupies the rank's processor for the modelled time. Jobs run one after the other.
// `performs`: whether they also move their bytes.
class ModelledCompute : public Compute {
 public:
  ModelledCompute(SimNetwork& network, int rank, bool performs)
      : network_(network), rank_(rank), performs_(performs) {}

  Status submit(const ComputeJob& job) override {
    const Nanoseconds done = network_.work(rank_, time_us(job));
    jobs_.push_back({job, done});
    network_.at(done, [this] { network_.wake(rank_); });
    return {};
  }
  Status perform_at_once(const ComputeJob&, std::size_t) override { return Status::busy(); }
  bool poll(ComputeSink& sink) override {
    bool any = false;
    for (; !jobs_.empty() && jobs_.front().done <= network_.clock().now(); any = true) {
      const ComputeJob job = jobs_.front().job;
      jobs_.pop_front();
      if (performs_) {
        RC_ASSERT(inline_.submit(job).ok());
        inline_.poll(sink);
      } else {
        sink.computed(job.cookie, {});
      }
    }
    return any;
  }
  bool arm() override { return true; }  // the network wakes the rank
  uint64_t bytes_copied() const override { return inline_.bytes_copied(); }

 protected:
  virtual double time_us(const ComputeJob& job) const = 0;

 private:
  struct Pending {
    ComputeJob job;
    Nanoseconds done;
  };

  SimNetwork& network_;
  int rank_;
  bool performs_;
  InlineCompute inline_;
  std::deque<Pending> jobs_;
};

// Jobs take the time of the link model.
class LinkCompute final : public ModelledCompute {
 public:
  LinkCompute(SimNetwork& network, const LinkModel& links, int rank, bool performs)
      : ModelledCompute(network, rank, performs), links_(links) {}

 private:
  double time_us(const ComputeJob& job) const override {
    const double rate = job.sources.size() > 1 ? links_.reduce_bytes_per_us /
                                                     static_cast<double>(job.sources.size() - 1)
                                               : links_.copy_bytes_per_us;
    return links_.step_us + static_cast<double>(total_bytes(job.to)) / rate;
  }

  const LinkModel& links_;
};

}  // namespace rdmacoll
