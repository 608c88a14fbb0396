// Registrations of GPU memory: what is kept, what is forgotten, and when.
#include <gmock/gmock.h>

#include <random>

#include "base/text.h"
#include "conformance/gpu_registrations_fixture.h"

namespace rdmacoll::rdma {
namespace {

constexpr std::size_t kPage = kGpuPageBytes;
constexpr Gpu kGpu = kTestGpu;

TEST_F(RdmaGpuRegistrations, an_allocation_is_registered_once_as_a_whole_with_each_nic) {
  make({}, 2);
  std::byte* memory = allocate(10 * kPage);
  ASSERT_TRUE(use({memory + 5000, 100}));
  ASSERT_TRUE(use({memory, 10 * kPage}));
  ASSERT_TRUE(use({memory + 9 * kPage, kPage}));
  EXPECT_EQ(registered(), 1u);
  EXPECT_EQ(registrations_->counters().hits, 2u);
  EXPECT_EQ(transport_counters_.registrations, 2u);
  EXPECT_EQ(gpus_->counters().sync_memops, 1u);
  EXPECT_EQ(gpus_->counters().unsynchronized, 0u);
  EXPECT_EQ(registrations_->registered_bytes(kGpu), gpus_->bar1_used(kGpu));
}

TEST_F(RdmaGpuRegistrations, allocations_that_share_a_page_have_keys_of_their_own) {
  make();
  for (int i = 0; i < 300; ++i) ASSERT_TRUE(use({allocate(1000), 1000})) << i;
  EXPECT_EQ(registered(), 300u);
}

TEST_F(RdmaGpuRegistrations, memory_outside_an_allocation_is_refused) {
  make();
  std::byte* memory = allocate(kPage);
  EXPECT_FALSE(registrations_->hold({memory, kPage + 1}));
  EXPECT_FALSE(registrations_->hold({memory + 2 * kPage, 1}));
  EXPECT_FALSE(registrations_->hold({memory, kPage + 1}));
  ASSERT_EQ(said_.size(), 1u) << "said once";
  EXPECT_THAT(said_[0], ::testing::HasSubstr("reaches over the end of an allocation"));
  EXPECT_TRUE(use({memory, kPage}));
}

// The caller may free released memory, and the host may get its address.
TEST_F(RdmaGpuRegistrations, an_address_is_held_until_the_release_of_its_memory) {
  make();
  std::byte* memory = allocate(2 * kPage);
  ASSERT_TRUE(registrations_->hold({memory, kPage}));
  EXPECT_TRUE(registrations_->is_held(memory + kPage - 1));
  registrations_->release({memory, kPage});
  EXPECT_FALSE(registrations_->is_held(memory));
  gpus_->free(memory);
  EXPECT_FALSE(registrations_->is_held(memory));
}

TEST_F(RdmaGpuRegistrations, freed_memory_is_registered_anew_when_it_is_allocated_again) {
  for (const bool takes_dma_bufs : {true, false}) {
    SCOPED_TRACE(takes_dma_bufs);
    nics_.clear();
    devices_.clear();
    make({}, 1, true, takes_dma_bufs);
    std::byte* memory = allocate(kPage);
    ASSERT_TRUE(use({memory, kPage}));
    gpus_->free(memory);
    EXPECT_FALSE(registrations_->hold({memory, kPage}));
    ASSERT_EQ(allocate(3 * kPage), memory);
    ASSERT_TRUE(use({memory, 3 * kPage}));
    gpus_->free(memory);
    ASSERT_EQ(allocate(kPage), memory);
    ASSERT_EQ(allocate(kPage), memory + kPage);
    ASSERT_TRUE(use({memory + kPage, kPage}) && use({memory, kPage}));
    EXPECT_EQ(registered(), 4u);
    registrations_.reset();
  }
}

TEST_F(RdmaGpuRegistrations, remapped_memory_gets_a_descriptor_of_its_own) {
  make();
  std::byte* memory = allocate(kPage);
  for (uint64_t i = 1; i <= 5; ++i) {
    ASSERT_TRUE(use({memory, kPage}));
    EXPECT_EQ(gpus_->counters().dma_bufs, i);
    gpus_->remap(memory);
  }
}

TEST_F(RdmaGpuRegistrations, no_registration_keeps_freed_memory_alive) {
  make();
  std::vector<std::byte*> arrays;
  for (int i = 0; i < 10; ++i) arrays.push_back(allocate(kPage));
  for (std::byte* array : arrays) ASSERT_TRUE(use({array, kPage}));
  for (int i = 0; i < 9; ++i) gpus_->free(arrays[static_cast<std::size_t>(i)]);
  EXPECT_EQ(gpus_->bytes_alive(), 10 * kPage);
  for (int i = 0; i < 10; ++i) registrations_->sweep(1);
  EXPECT_EQ(gpus_->bytes_alive(), kPage);
  EXPECT_EQ(registrations_->allocations(), 1u);
  EXPECT_EQ(registrations_->counters().freed, 9u);
  ASSERT_TRUE(use({arrays.back(), kPage}));
  EXPECT_EQ(registered(), 10u);
}

TEST_F(RdmaGpuRegistrations, the_longest_unused_goes_when_bar1_is_full_and_held_memory_never) {
  make({.bar1_bytes = 8 * kPage});
  std::byte* arrays[5];
  for (std::byte*& array : arrays) array = allocate(2 * kPage);
  for (int i = 0; i < 4; ++i) ASSERT_TRUE(use({arrays[i], 2 * kPage}));
  ASSERT_TRUE(registrations_->hold({arrays[0], kPage}));
  ASSERT_TRUE(registrations_->hold({arrays[1], kPage}));
  registrations_->release({arrays[1], kPage});
  ASSERT_TRUE(use({arrays[4], 2 * kPage}));
  EXPECT_EQ(registrations_->counters().evictions, 1u);
  EXPECT_TRUE(is_reached({arrays[0], 2 * kPage}));
  const uint64_t before = registered();
  ASSERT_TRUE(use({arrays[1], 2 * kPage}) && use({arrays[3], 2 * kPage}));
  EXPECT_EQ(registered(), before);
  for (const int i : {1, 3, 4}) ASSERT_TRUE(registrations_->hold({arrays[i], kPage}));
  EXPECT_FALSE(registrations_->hold({arrays[2], kPage})) << "all others are in use";
  registrations_->release({arrays[4], kPage});
  EXPECT_TRUE(registrations_->hold({arrays[2], kPage}));
  EXPECT_EQ(gpus_->counters().bar1_refusals, 0u);
  EXPECT_FALSE(registrations_->hold({arrays[4], kPage}));
  ASSERT_EQ(said_.size(), 1u) << "said once";
  EXPECT_THAT(said_[0], ::testing::HasSubstr(
                            "Arrays in use take 512 KiB of the 512 KiB that the GPU's BAR1 has"));
  EXPECT_THAT(said_[0], ::testing::HasSubstr("Resizable BAR"));
}

TEST_F(RdmaGpuRegistrations, gpus_have_a_bar1_each) {
  make({.bar1_bytes = 4 * kPage});
  std::byte* here = allocate(2 * kPage);
  std::byte* there = gpus_->allocate(1, 2 * kPage);
  ASSERT_TRUE(use({here, kPage}) && use({there, kPage}) && use({allocate(2 * kPage), kPage}) &&
              use({allocate(2 * kPage), kPage}));
  EXPECT_EQ(registrations_->counters().evictions, 1u);
  EXPECT_EQ(registrations_->registered_bytes(1), 2 * kPage);
}

TEST_F(RdmaGpuRegistrations, an_allocation_larger_than_bar1_is_registered_in_slabs) {
  make({.bar1_bytes = 64 * kPage}, 2);
  std::byte* memory = allocate(1000 * kPage + 77);
  ASSERT_TRUE(use({memory + 5 * kPage, 13 * kPage}));
  EXPECT_LE(registrations_->registered_bytes(kGpu), 64 * kPage);
  for (std::size_t at = 0; at + 7 <= 1000; at += 7)
    ASSERT_TRUE(use({memory + at * kPage, 7 * kPage}));
  ASSERT_TRUE(use({memory + 1000 * kPage, 77}));
  EXPECT_FALSE(registrations_->hold({memory, 40 * kPage})) << "both NICs together need more";
  EXPECT_EQ(gpus_->counters().bar1_refusals, 0u);
  EXPECT_EQ(gpus_->counters().sync_memops, 1u);
}

TEST_F(RdmaGpuRegistrations, memory_freed_while_it_is_held_is_not_registered_until_its_release) {
  make();
  std::byte* memory = allocate(kPage);
  ASSERT_TRUE(registrations_->hold({memory, kPage}));
  gpus_->free(memory);
  ASSERT_EQ(allocate(kPage), memory);
  EXPECT_FALSE(registrations_->hold({memory, kPage}));
  registrations_->sweep(10);
  registrations_->release({memory, kPage});
  EXPECT_TRUE(use({memory, kPage}));
}

TEST_F(RdmaGpuRegistrations, a_steady_pattern_hits_after_its_first_step) {
  make({.bar1_bytes = 1024 * kPage}, 2);
  std::vector<Piece> arrays;
  for (int pool = 0; pool < 2; ++pool) {
    std::byte* memory = allocate(200 * kPage);
    for (std::size_t i = 0; i < 80; ++i) arrays.push_back({memory + i * 2 * kPage, kPage + 100});
  }
  for (int step = 0; step < 1000; ++step) {
    for (const Piece& array : arrays) ASSERT_TRUE(registrations_->hold(array));
    for (const Piece& array : arrays) registrations_->release(array);
    ASSERT_EQ(registered(), 2u) << "step " << step;
  }
  EXPECT_EQ(registered(), 2u);
  const double share =
      static_cast<double>(registrations_->counters().hits) / (1000.0 * arrays.size());
  EXPECT_GE(share, 0.999);
}

// A caller that allocates, frees, remaps and uses memory at random.
class RandomCaller {
 public:
  RandomCaller(verbs_sim::SimGpus& gpus, GpuRegistrations& registrations, uint64_t seed)
      : gpus_(gpus), registrations_(registrations), random_(seed) {}

  template <typename IsReached>
  void step(const IsReached& is_reached) {
    const uint64_t choice = random_() % 100;
    if (arrays_.empty() || (choice < 20 && arrays_.size() < 60)) return allocate();
    if (choice < 38) return free();
    if (choice < 40) return remap();
    if (choice < 70) return hold(is_reached);
    if (choice < 72) return registrations_.sweep(1);
    release(is_reached);
  }
  std::size_t arrays() const { return arrays_.size(); }
  uint64_t holds() const { return holds_; }

 private:
  struct Array {
    std::byte* memory = nullptr;
    std::size_t bytes = 0;
    int held = 0;
  };
  struct Held {
    std::byte* array = nullptr;
    Piece memory;
  };

  void allocate() {
    const std::size_t bytes = std::size_t{1} << (9 + random_() % 13);
    Array array{.bytes = bytes + random_() % bytes};
    array.memory =
        gpus_.allocate(static_cast<Gpu>(random_() % 2), array.bytes, random_() % 50 != 0);
    arrays_.push_back(array);
  }
  void free() {
    Array& array = any();
    if (array.held > 0) return;
    gpus_.free(array.memory);
    std::swap(array, arrays_.back());
    arrays_.pop_back();
  }
  void remap() {
    if (Array& array = any(); array.held == 0) gpus_.remap(array.memory);
  }
  template <typename IsReached>
  void hold(const IsReached& is_reached) {
    Array& array = any();
    const std::size_t from = random_() % array.bytes;
    const Piece memory{array.memory + from, 1 + random_() % (array.bytes - from)};
    if (held_.size() >= 12 || !registrations_.hold(memory)) return;
    ++holds_;
    ++array.held;
    held_.push_back({array.memory, memory});
    ASSERT_TRUE(is_reached(memory));
  }
  template <typename IsReached>
  void release(const IsReached& is_reached) {
    if (held_.empty()) return;
    Held& held = held_[random_() % held_.size()];
    ASSERT_TRUE(is_reached(held.memory)) << "at the end of its use";
    registrations_.release(held.memory);
    for (Array& array : arrays_) array.held -= array.memory == held.array ? 1 : 0;
    std::swap(held, held_.back());
    held_.pop_back();
  }
  Array& any() { return arrays_[random_() % arrays_.size()]; }

  verbs_sim::SimGpus& gpus_;
  GpuRegistrations& registrations_;
  std::mt19937_64 random_;
  std::vector<Array> arrays_;
  std::vector<Held> held_;
  uint64_t holds_ = 0;
};

TEST_F(RdmaGpuRegistrations, no_stale_key_is_used_in_a_million_random_steps) {
  constexpr uint64_t kSeed = 20261127;
  constexpr std::size_t kBar1 = 64 * kPage;
  make({.bar1_bytes = kBar1}, 2);
  gpus_->model(1).bar1_bytes = 3 * kBar1;
  RandomCaller caller(*gpus_, *registrations_, kSeed);
  for (int step = 0; step < 1'000'000; ++step) {
    caller.step([this](const Piece& memory) { return is_reached(memory); });
    for (const Gpu gpu : {Gpu{0}, Gpu{1}}) {
      ASSERT_EQ(registrations_->registered_bytes(gpu), gpus_->bar1_used(gpu)) << step;
    }
    ASSERT_LE(registrations_->allocations(), 600u) << "step " << step << ", seed " << kSeed;
    if (HasFatalFailure()) FAIL() << "step " << step << ", seed " << kSeed;
  }
  EXPECT_EQ(gpus_->counters().stale_accesses, 0u);
  EXPECT_EQ(gpus_->counters().bar1_refusals, 0u);
  EXPECT_EQ(gpus_->counters().unsynchronized, 0u);
  EXPECT_GT(registrations_->counters().evictions, 1000u);
  EXPECT_GT(registrations_->counters().freed, 1000u);
  EXPECT_GT(registrations_->counters().hits, 1000u);
  EXPECT_GT(caller.holds(), 100'000u);
}

}  // namespace
}  // namespace rdmacoll::rdma
