// Small results that the processor writes to GPUs through GDRCopy, with the fake driver. It ends
// the process if memory is written that was freed, that is not mapped, or that queued work uses.
#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <list>
#include <memory>
#include <random>

#include "compute/inline.h"
#include "cuda/bar_writes.h"
#include "cuda/cuda_memory.h"
#include "unit/compute_fixture.h"

namespace rdmacoll::cuda {
namespace {

using compute_test::Counting;
using ::testing::HasSubstr;

std::string library() {
  return std::filesystem::read_symlink("/proc/self/exe").parent_path() / "libcuda_sim.so";
}

template <typename Function>
Function of_fake(const char* name) {
  static void* const handle = dlopen(library().c_str(), RTLD_NOW);
  return reinterpret_cast<Function>(dlsym(handle, name));
}
long long count(const char* name) {
  return of_fake<long long (*)(const char*)>("cuda_sim_count")(name);
}
void fail(const char* function, int result, int calls_before = 0) {
  of_fake<void (*)(const char*, int, int)>("cuda_sim_fail")(function, result, calls_before);
}

// Copies take 9 us, and writes 1 us, as the measurement looks at it.
class FastWrites final : public Clock {
 public:
  Nanoseconds now() const override {
    constexpr Nanoseconds kSteps[] = {0, 9'000, 1'000, 0};  // the last one: for the limit
    return now_ += kSteps[looks_++ % 4];
  }

 private:
  mutable std::size_t looks_ = 0;
  mutable Nanoseconds now_ = 0;
};

class CudaBarWrites : public ::testing::Test {
 protected:
  void SetUp() override {
    setenv("CUDA_SIM_MACHINE", "k80", 0);
    ASSERT_TRUE(Driver::open(library(), driver).ok());
    ASSERT_TRUE(MemoryPool::create(std::size_t{64} << 20, pool).ok());
    host = pool->allocate(kHostBytes);
    std::mt19937_64 random(kSeed);
    for (std::size_t i = 0; i < kHostBytes; ++i) host[i] = static_cast<std::byte>(random());
  }
  void TearDown() override {
    if (memory != nullptr) stop();
    EXPECT_EQ(count("live pins of GDRCopy"), 0);
  }
  // Opens all, and measures one run of each size.
  void start(const std::string& gdrcopy = library(), LogLevel level = LogLevel::warning) {
    ASSERT_TRUE(CudaMemory::open({.library = library(),
                                  .pool = *pool,
                                  .log = Log(level, 0),
                                  .wake = [] {},
                                  .gdrcopy_library = gdrcopy},
                                 memory)
                    .ok());
    compute = std::make_unique<GpuCompute>(std::make_unique<InlineCompute>(), clock);
    compute->open(memory->parts());
    ASSERT_TRUE(memory->use(0, gpu).ok());
    memory->parts().bar_writes->probe()(gpu, FastWrites(), 0);
  }
  void stop() {
    compute.reset();
    memory->close();
    memory.reset();
  }
  std::byte* allocate(std::size_t bytes) {
    const ScopedContext context(memory->parts().gpus, gpu);
    Address address = 0;
    EXPECT_EQ(driver->call.cuMemAlloc_v2(&address, bytes), kSuccess);
    return reinterpret_cast<std::byte*>(address);
  }
  void free(std::byte* array) {
    const ScopedContext context(memory->parts().gpus, gpu);
    EXPECT_EQ(driver->call.cuMemFree_v2(reinterpret_cast<Address>(array)), kSuccess);
  }
  // Copies `bytes` from host[at] to the GPU, and waits until the job and the mappings are done.
  // Returns how many bytes the processor wrote.
  uint64_t copy(std::vector<Piece> to, std::size_t at = 0, bool shown = false) {
    std::size_t bytes = 0;
    for (const Piece& piece : to) bytes += piece.bytes;
    const uint64_t before = compute->gpu_counters().bytes_written;
    finish(std::move(to), {{host + at, bytes}}, shown);
    EXPECT_TRUE(memory->thread().finish());
    return compute->gpu_counters().bytes_written - before;
  }
  void finish(std::vector<Piece> to, std::vector<Piece> from, bool shown = false) {
    const Operand operand{.pieces = from};
    const ComputeJob job{.to = to, .sources = {&operand, 1}, .shown = shown, .on_gpu = true};
    ASSERT_TRUE(compute->submit(job).ok());
    Counting sink;
    while (sink.cookies.empty()) compute->poll(sink);
    for (const Status& status : sink.statuses) ASSERT_TRUE(status.ok()) << status.message();
  }
  // Whether the GPU has bytes of host[at].
  bool has(const std::byte* array, std::size_t bytes, std::size_t at = 0) {
    std::byte* const back = pool->allocate(bytes);
    finish({{back, bytes}}, {{const_cast<std::byte*>(array), bytes, gpu}});
    const bool is_equal = std::memcmp(back, host + at, bytes) == 0;
    pool->free(back);
    return is_equal;
  }

  static constexpr unsigned kSeed = 7;
  static constexpr std::size_t kHostBytes = std::size_t{1} << 20;
  const Driver* driver = nullptr;
  SteadyClock clock;
  std::unique_ptr<MemoryPool> pool;
  std::unique_ptr<CudaMemory> memory;
  std::unique_ptr<GpuCompute> compute;
  std::byte* host = nullptr;
  Gpu gpu = kHost;
};

TEST_F(CudaBarWrites, are_taken_up_to_the_size_at_which_copies_are_as_fast) {
  using Times = std::vector<WriteTimes>;
  EXPECT_EQ(bytes_written_at_most(Times{}), 0u) << "nothing was measured";
  EXPECT_EQ(bytes_written_at_most(Times{{64, 9'000, 1'000}, {512, 9'000, 1'100}}), 512u);
  EXPECT_EQ(bytes_written_at_most(Times{{64, 9'000, 1'000}, {512, 9'000, 9'000}}), 64u);
  EXPECT_EQ(bytes_written_at_most(Times{{64, 900, 1'000}, {512, 9'000, 1'100}}), 0u);
  EXPECT_EQ(bytes_written_at_most(Times{{64, 9'000, 0}}), 0u) << "nonsense";
}

TEST_F(CudaBarWrites, begin_with_the_second_result_in_an_array) {
  start();
  std::byte* const array = allocate(8192);
  EXPECT_EQ(copy({{array + 100, 4096, gpu}}), 0u) << "it is not mapped yet";
  const long long copies = count("copies host to device");
  const long long records = count("calls cuEventRecord");
  for (std::size_t turn = 1; turn < 20; ++turn) {
    EXPECT_EQ(copy({{array + 100, 4096, gpu}}, turn), 4096u);
    EXPECT_EQ(copy({{array + 5000, 8, gpu}, {array, 17, gpu}}, turn + 1), 25u);
  }
  EXPECT_EQ(count("copies host to device"), copies);
  EXPECT_EQ(count("calls cuEventRecord"), records);
  EXPECT_TRUE(has(array + 100, 4096, 19));
  EXPECT_TRUE(has(array + 5000, 8, 20) && has(array, 17, 28));
  free(array);
}

TEST_F(CudaBarWrites, leave_larger_results_and_those_for_peers_to_copies) {
  start();
  std::byte* const array = allocate(std::size_t{1} << 20);
  for (int turn = 0; turn < 3; ++turn) {
    EXPECT_EQ(copy({{array, 4097, gpu}}), 0u);
    EXPECT_EQ(copy({{array, 8, gpu}}, 0, true), 0u) << "another rank may read it";
    EXPECT_EQ(copy({{array, 8, gpu}, {host + 4096, 8}}), 0u) << "partly on the host";
    EXPECT_EQ(copy(std::vector<Piece>(9, {array, 8, gpu})), 0u) << "a kernel copies many pieces";
  }
  EXPECT_EQ(count("live pins of GDRCopy"), 0);
  free(array);
}

// The fake driver gives the same address again, and ends the process if an old mapping is used.
TEST_F(CudaBarWrites, never_reach_memory_that_was_freed) {
  start();
  for (std::size_t turn = 0; turn < 20; ++turn) {
    std::byte* const array = allocate(4096);
    EXPECT_EQ(copy({{array, 64, gpu}}, turn), 0u) << "new memory is not mapped";
    EXPECT_EQ(copy({{array, 64, gpu}}, turn + 1), 64u);
    EXPECT_TRUE(has(array, 64, turn + 1));
    free(array);
    EXPECT_LE(count("live pins of GDRCopy"), 2);
  }
  std::byte* const first = allocate(std::size_t{2} << 20);
  std::byte* const second = allocate(std::size_t{2} << 20);
  std::byte* const third = allocate(std::size_t{2} << 20);
  (void)copy({{first, 64, gpu}});
  (void)copy({{second, 64, gpu}});
  free(first);
  (void)copy({{third, 64, gpu}});
  EXPECT_EQ(count("live pins of GDRCopy"), 2) << "mappings of freed memory end";
  free(second);
  free(third);
}

TEST_F(CudaBarWrites, have_a_bounded_number_of_mappings) {
  start();
  constexpr std::size_t kArrays = BarWrites::kMappingsMax + 10;
  std::vector<std::byte*> arrays;
  for (std::size_t i = 0; i < kArrays; ++i) arrays.push_back(allocate(std::size_t{1} << 20));
  for (std::byte* const array : arrays) (void)copy({{array, 8, gpu}});
  EXPECT_EQ(count("live pins of GDRCopy"), static_cast<long long>(BarWrites::kMappingsMax));
  const long long pins = count("calls gdr_pin_buffer");
  uint64_t written = 0;
  for (std::size_t i = 0; i < kArrays; ++i) written += copy({{arrays[i], 8, gpu}}, i);
  EXPECT_EQ(written, 8 * BarWrites::kMappingsMax) << "arrays in use keep their mappings";
  EXPECT_EQ(count("calls gdr_pin_buffer"), pins);
  for (uint64_t turn = 0; turn < BarWrites::kTurnsKept; ++turn) (void)copy({{arrays[0], 8, gpu}});
  EXPECT_EQ(copy({{arrays.back(), 8, gpu}}), 0u);
  EXPECT_EQ(copy({{arrays.back(), 8, gpu}}), 8u) << "others are no longer in use";
  EXPECT_LE(count("live pins of GDRCopy"), static_cast<long long>(BarWrites::kMappingsMax));
  for (std::size_t i = 0; i < kArrays; ++i) free(arrays[i]);
}

TEST_F(CudaBarWrites, copy_to_memory_that_cannot_be_mapped_and_say_so_once) {
  testing::internal::CaptureStderr();
  start(library(), LogLevel::info);
  std::byte* const first = allocate(8);
  std::byte* const second = allocate(std::size_t{1} << 20);
  fail("gdr_pin_buffer", ENOMEM);
  EXPECT_EQ(copy({{first, 8, gpu}}), 0u);
  fail("gdr_map", EAGAIN);
  EXPECT_EQ(copy({{second, 8, gpu}}), 0u);
  const long long pins = count("calls gdr_pin_buffer");
  for (std::size_t turn = 1; turn < 5; ++turn) {
    EXPECT_EQ(copy({{first, 8, gpu}}, turn) + copy({{second, 8, gpu}}, turn), 0u);
  }
  EXPECT_EQ(count("calls gdr_pin_buffer"), pins) << "they are not tried again and again";
  EXPECT_TRUE(has(first, 8, 4) && has(second, 8, 4));
  free(first);
  free(second);
  stop();
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_THAT(said, HasSubstr("results of up to 4 KiB are written to"));
  EXPECT_THAT(said, HasSubstr("not written: gdr_pin_buffer of GDRCopy failed: Cannot allocate"));
  EXPECT_EQ(said.find("not written"), said.rfind("not written"));
}

TEST_F(CudaBarWrites, copy_what_is_no_memory_of_cuMemAlloc) {
  start();
  Address address = 0;
  const auto allocate_managed =
      of_fake<Result (*)(Address*, std::size_t, unsigned)>("cuMemAllocManaged");
  {
    const ScopedContext context(memory->parts().gpus, gpu);
    ASSERT_EQ(allocate_managed(&address, 4096, 1), kSuccess);
  }
  auto* const array = reinterpret_cast<std::byte*>(address);
  for (std::size_t turn = 0; turn < 3; ++turn) EXPECT_EQ(copy({{array, 8, gpu}}, turn), 0u);
  EXPECT_TRUE(has(array, 8, 2));
  free(array);
}

TEST_F(CudaBarWrites, copy_if_a_write_is_refused) {
  start();
  std::byte* const array = allocate(4096);
  (void)copy({{array, 16, gpu}});
  fail("gdr_copy_to_mapping", EINVAL);
  EXPECT_EQ(copy({{array, 16, gpu}}, 1), 0u);
  EXPECT_TRUE(has(array, 16, 1));
  EXPECT_EQ(copy({{array, 16, gpu}}, 2), 0u) << "the mapping is not used again";
  free(array);
}

TEST_F(CudaBarWrites, are_not_tried_where_the_measurement_fails) {
  for (const char* call :
       {"gdr_pin_buffer", "gdr_map", "gdr_copy_to_mapping", "gdr_copy_from_mapping"}) {
    testing::internal::CaptureStderr();
    fail(call, EINVAL);
    start();
    EXPECT_EQ(count("live pins of GDRCopy"), 0) << call;
    std::byte* const array = allocate(4096);
    EXPECT_EQ(copy({{array, 8, gpu}}) + copy({{array, 8, gpu}}), 0u) << call;
    free(array);
    stop();
    EXPECT_THAT(testing::internal::GetCapturedStderr(),
                testing::AllOf(HasSubstr("GDRCopy is not used for the GPU cuda:0"),
                               HasSubstr(std::string(call) + " of GDRCopy failed: Invalid")));
  }
}

TEST_F(CudaBarWrites, need_the_library_and_its_module) {
  const long long opened = count("calls gdr_open");
  for (const char* name : {"", "/nonexistent/libgdrapi.so.2"}) {
    testing::internal::CaptureStderr();
    start(name, LogLevel::info);
    std::byte* const array = allocate(8);
    EXPECT_EQ(copy({{array, 8, gpu}}) + copy({{array, 8, gpu}}), 0u);
    free(array);
    stop();
    EXPECT_THAT(testing::internal::GetCapturedStderr(), testing::Not(HasSubstr("GDRCopy")));
  }
  EXPECT_EQ(count("calls gdr_open"), opened);
  testing::internal::CaptureStderr();
  fail("gdr_open", 1);
  start(library(), LogLevel::info);
  stop();
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              HasSubstr("GDRCopy is not used: its kernel module gdrdrv is not loaded"));
  Gdrcopy::Problem problem;
  EXPECT_EQ(Gdrcopy::open("libc.so.6", problem), nullptr);
  EXPECT_THAT(problem.text, HasSubstr("libc.so.6 lacks the function gdr_open"));
}

TEST_F(CudaBarWrites, measure_within_the_limit) {
  start();
  const auto gpus = std::make_shared<Gpus>(*driver);
  Gpu used = kHost;
  ASSERT_TRUE(gpus->use(0, used).ok());
  DriverThread thread;
  const BarWrites writes(gpus, thread, library(), Log(LogLevel::warning, 0));
  const long long before = count("calls gdr_copy_to_mapping");
  writes.probe()(used, clock, clock.now());
  EXPECT_EQ(count("calls gdr_copy_to_mapping"), before + 3) << "one of each size";
  writes.probe()(used, clock, kNever);
  EXPECT_EQ(count("calls gdr_copy_to_mapping"), before + 3 + 18) << "six of each size";
}

}  // namespace
}  // namespace rdmacoll::cuda
