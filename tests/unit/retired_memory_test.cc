// Memory of GPUs that callers have given back stays until the work of their streams is done.
#include "cuda/retired_memory.h"

#include <gtest/gtest.h>

#include <memory>
#include <utility>

namespace rdmacoll::cuda {
namespace {

// One GPU, whose streams reach the present when `has_reached` says so.
struct OneGpu final : DeviceMemory {
  struct Order final : StreamOrder {
    explicit Order(const OneGpu& gpu) : gpu(gpu) {}
    Status reached(bool& is_reached) override {
      is_reached = gpu.has_reached;
      return gpu.broken;
    }
    const OneGpu& gpu;
  };

  bool has_reached = false;
  Status broken, unknown_stream, unknown_memory;
  uint64_t stream = 0;
  Gpu place = 0;

  Status use(int, Gpu& gpu) override {
    gpu = 0;
    return {};
  }
  int number_of(Gpu) const override { return 0; }
  Status find(const void*, Gpu& gpu) override {
    if (unknown_memory.ok()) gpu = place;
    return unknown_memory;
  }
  Status find_stream(uint64_t, Gpu& gpu) override {
    gpu = 0;
    return {};
  }
  Status order(uint64_t asked, Gpu, std::shared_ptr<StreamOrder>& order) override {
    stream = asked;
    if (unknown_stream.ok()) order = std::make_shared<Order>(*this);
    return unknown_stream;
  }
  Status follow(Gpu, uint64_t, uint64_t) override { return Status::busy(); }
  Status copy(std::span<const HostCopy>, CopyTo, Gpu, uint64_t) override { return Status::busy(); }
  void pin(std::span<const HostCopy>, Gpu) override {}
  std::shared_ptr<std::byte[]> allocate_array(Gpu, uint64_t) override { return nullptr; }
  std::shared_ptr<std::byte[]> allocate(Gpu, uint64_t bytes) override {
    return std::make_shared<std::byte[]>(bytes);
  }
  void retire(std::shared_ptr<std::byte[]>, uint64_t) override {}
};

class RetiredMemoryOf : public testing::Test {
 protected:
  std::weak_ptr<std::byte[]> retire(RetiredMemory& retired, uint64_t stream = 7) {
    std::shared_ptr<std::byte[]> memory = gpu_.allocate(0, 8);
    const std::weak_ptr<std::byte[]> watched = memory;
    retired.add(gpu_, std::move(memory), stream);
    return watched;
  }

  RetiredMemory::TakeOver taker() {
    return [this](Gpu gpu, const std::shared_ptr<std::byte[]>&) {
      taken_over_ += gpu == 0 ? 1 : 100;
      return can_take_over_;
    };
  }

  OneGpu gpu_;
  bool can_take_over_ = true;
  int taken_over_ = 0;
};

TEST_F(RetiredMemoryOf, a_stream_stays_until_its_work_is_done) {
  RetiredMemory retired(taker());
  const auto watched = retire(retired);
  EXPECT_EQ(gpu_.stream, 7u);
  retired.sweep(gpu_);
  EXPECT_FALSE(watched.expired());
  gpu_.has_reached = true;
  retired.sweep(gpu_);
  EXPECT_TRUE(watched.expired());
}

// Another thread may free the memory, and its stream 2 is another one.
TEST_F(RetiredMemoryOf, the_stream_of_a_thread_waits_for_the_streams_of_all_threads) {
  RetiredMemory retired(taker());
  (void)retire(retired, 2);
  EXPECT_EQ(gpu_.stream, 1u);
}

TEST_F(RetiredMemoryOf, the_host_is_free_at_once) {
  RetiredMemory retired(taker());
  gpu_.place = kHost;
  EXPECT_TRUE(retire(retired, 1).expired());
  EXPECT_EQ(gpu_.stream, 0u);
}

TEST_F(RetiredMemoryOf, a_captured_stream_stays_until_the_work_after_the_capture_is_done) {
  RetiredMemory retired(taker());
  gpu_.unknown_stream = {Code::invalid, "the stream is captured."};
  const auto watched = retire(retired);
  gpu_.has_reached = true;
  retired.sweep(gpu_);
  EXPECT_FALSE(watched.expired());
  gpu_.unknown_stream = {};
  gpu_.has_reached = false;
  gpu_.stream = 0;
  retired.sweep(gpu_);
  EXPECT_EQ(gpu_.stream, 7u);
  EXPECT_FALSE(watched.expired());
  gpu_.has_reached = true;
  retired.sweep(gpu_);
  EXPECT_TRUE(watched.expired());
}

TEST_F(RetiredMemoryOf, an_unknown_stream_is_taken_over) {
  RetiredMemory retired(taker());
  gpu_.unknown_stream = {Code::failed, "no such stream."};
  EXPECT_TRUE(retire(retired).expired());
  EXPECT_EQ(taken_over_, 1);
  can_take_over_ = false;
  const auto watched = retire(retired);
  EXPECT_FALSE(watched.expired());
  can_take_over_ = true;
  retired.sweep(gpu_);
  EXPECT_TRUE(watched.expired());
  EXPECT_EQ(taken_over_, 3);
}

TEST_F(RetiredMemoryOf, an_unknown_gpu_is_asked_for_again) {
  RetiredMemory retired(taker());
  gpu_.unknown_memory = {Code::failed, "the driver does not answer."};
  const auto watched = retire(retired);
  retired.sweep(gpu_);
  EXPECT_FALSE(watched.expired());
  gpu_.unknown_memory = {};
  gpu_.has_reached = true;
  retired.sweep(gpu_);
  EXPECT_TRUE(watched.expired());
  EXPECT_EQ(taken_over_, 0);
}

TEST_F(RetiredMemoryOf, a_broken_gpu_stays_to_the_end) {
  std::weak_ptr<std::byte[]> broken;
  {
    RetiredMemory retired(taker());
    broken = retire(retired);
    gpu_.broken = {Code::failed, "an illegal address."};
    gpu_.has_reached = true;
    retired.sweep(gpu_);
    EXPECT_FALSE(broken.expired());
  }
  EXPECT_TRUE(broken.expired());
}

}  // namespace
}  // namespace rdmacoll::cuda
