// Registrations of GPU memory that fail: what is said, and what is tried again.
#include "base/text.h"
#include "conformance/gpu_registrations_fixture.h"

namespace rdmacoll::rdma {
namespace {

using testing::HasSubstr;

constexpr std::size_t kPage = kGpuPageBytes;
constexpr Gpu kGpu = kTestGpu;

using RdmaGpuRefusals = RdmaGpuRegistrations;

TEST_F(RdmaGpuRefusals, memory_larger_than_bar1_is_refused_and_drops_no_registration) {
  make({.bar1_bytes = 64 * kPage});
  std::byte* small = allocate(4 * kPage);
  ASSERT_TRUE(use({small, 4 * kPage}));
  std::byte* large = allocate(100 * kPage);
  for (int i = 0; i < 3; ++i) EXPECT_FALSE(registrations_->hold({large, 100 * kPage}));
  EXPECT_EQ(registrations_->counters().evictions, 0u);
  ASSERT_TRUE(use({small, 4 * kPage}));
  EXPECT_EQ(registered(), 1u);
  ASSERT_EQ(said_.size(), 1u);
  EXPECT_THAT(said_[0], HasSubstr("takes more of the GPU's BAR1 than its 4 MiB"));
  // Memory that others hold cannot make room.
  ASSERT_TRUE(registrations_->hold({small, kPage}));
  EXPECT_FALSE(registrations_->hold({large, 63 * kPage}));
  registrations_->release({small, kPage});
  EXPECT_EQ(registrations_->counters().evictions, 0u);
  EXPECT_TRUE(use({large, 63 * kPage}));
  ASSERT_EQ(said_.size(), 2u);
  EXPECT_THAT(said_[1], HasSubstr("Arrays in use take 256 KiB of the 4 MiB"));
}

TEST_F(RdmaGpuRefusals, a_registration_that_failed_is_tried_again_ever_more_rarely) {
  make({.gives_dma_bufs = false}, 1, false);
  std::byte* memory = allocate(kPage);
  int failures = 0;
  while (registrations_->counters().refusals < 1000) {
    EXPECT_FALSE(registrations_->hold({memory, kPage}));
    ++failures;
  }
  EXPECT_EQ(said_.size(), 1u);
  const uint64_t tries = gpus_->counters().dma_bufs;
  EXPECT_GE(tries, 5u);
  EXPECT_LE(tries, 12u);
  gpus_->model(kGpu).gives_dma_bufs = true;
  int refused = 0;
  while (!registrations_->hold({memory, kPage}) && refused < 2000) ++refused;
  EXPECT_LT(refused, 2000) << "it is never tried again";
  EXPECT_TRUE(is_reached({memory, kPage}));
  registrations_->release({memory, kPage});
}

TEST_F(RdmaGpuRefusals, memory_that_cannot_be_registered_is_said_once) {
  make({}, 1, false, false);
  std::byte* memory = allocate(kPage);
  for (int i = 0; i < 5; ++i) EXPECT_FALSE(registrations_->hold({memory, kPage}));
  EXPECT_EQ(said_.size(), 1u);
  EXPECT_THAT(said_[0], HasSubstr("modprobe nvidia_peermem"));
  EXPECT_THAT(said_[0], HasSubstr("takes no dma-buf"));
  EXPECT_EQ(gpus_->counters().sync_memops, 1u);
  gpus_->free(memory);
  for (std::size_t pages = 1; pages < 4; ++pages) {
    EXPECT_FALSE(registrations_->hold({allocate(pages * kPage), pages * kPage}));
  }
  EXPECT_EQ(gpus_->counters().sync_memops, 4u) << "other memory is tried";
  EXPECT_EQ(said_.size(), 1u) << "whatever the sizes";
}

TEST_F(RdmaGpuRefusals, memory_is_refused_by_its_attributes_before_any_try) {
  make();
  std::byte* memory = gpus_->allocate(kGpu, kPage, false);
  EXPECT_FALSE(registrations_->hold({memory, kPage}));
  EXPECT_EQ(gpus_->counters().dma_bufs, 0u);
  ASSERT_EQ(said_.size(), 1u);
  EXPECT_THAT(said_[0], HasSubstr("Allocate it with cudaMalloc"));
  gpus_->free(memory);
  ASSERT_EQ(allocate(kPage), memory);
  EXPECT_TRUE(use({memory, kPage}));
}

TEST_F(RdmaGpuRefusals, an_unknown_or_tiny_bar1_is_never_guessed) {
  make({.is_bar1_known = false});
  EXPECT_FALSE(registrations_->hold({allocate(kPage), kPage}));
  EXPECT_THAT(said_.at(0), HasSubstr("BAR1 is unknown"));
  std::byte* there = gpus_->allocate(1, kPage);
  gpus_->model(1).bar1_bytes = kPage - 1;
  EXPECT_FALSE(registrations_->hold({there, kPage}));
  EXPECT_EQ(said_.size(), 2u);
}

TEST_F(RdmaGpuRefusals, either_way_alone_is_enough) {
  for (const auto& [module, gives, takes] :
       {std::tuple(true, false, true), std::tuple(true, true, false),
        std::tuple(false, true, true)}) {
    SCOPED_TRACE(cat(module, gives, takes));
    nics_.clear();
    devices_.clear();
    make({.gives_dma_bufs = gives}, 1, module, takes);
    EXPECT_TRUE(use({allocate(kPage), kPage}));
    EXPECT_TRUE(said_.empty());
    registrations_.reset();
  }
}

}  // namespace
}  // namespace rdmacoll::rdma
