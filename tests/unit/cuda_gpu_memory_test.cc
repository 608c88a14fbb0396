// Facts about GPU memory that NICs need, from the fake driver.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/eventfd.h>

#include <cstdlib>
#include <filesystem>

#include "cuda/cuda_memory.h"
#include "cuda/gpu_memory.h"
#include "memory/pool.h"

namespace rdmacoll::cuda {
namespace {

using ::testing::HasSubstr;

// The driver lies beside this program.
class CudaGpuMemory : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    ::setenv("CUDA_SIM_MACHINE", "k80", 0);
    const Status status = Driver::open(library(), driver_);
    ASSERT_TRUE(status.ok()) << status.message();
  }
  static std::string library() {
    const auto folder = std::filesystem::read_symlink("/proc/self/exe").parent_path();
    return (folder / "libcuda_sim.so").string();
  }
  void SetUp() override {
    ASSERT_TRUE(gpus_.use(0, gpu_).ok());
    array_ = allocate();
  }
  std::byte* allocate() {
    const ScopedContext context(gpus_, gpu_);
    Address address = 0;
    EXPECT_EQ(driver_->call.cuMemAlloc_v2(&address, kBytes), kSuccess);
    return reinterpret_cast<std::byte*>(address);
  }
  void free(std::byte* array) {
    const ScopedContext context(gpus_, gpu_);
    EXPECT_EQ(driver_->call.cuMemFree_v2(reinterpret_cast<Address>(array)), kSuccess);
  }
  void TearDown() override {
    if (array_ != nullptr) free(array_);
  }

  static constexpr std::size_t kBytes = 1 << 20;
  static const Driver* driver_;
  // The way of the first GPU of the driver.
  static std::vector<DirectWay> ways() {
    GpuFacts facts;
    EXPECT_TRUE(read_facts(*driver_, 0, facts).ok());
    return {{.uuid = facts.uuid,
             .address = {},
             .ways = {.sends = false, .receives = true},
             .registrable_bytes = 12345,
             .warning = "The direct way is lost.",
             .status = {Code::invalid, "It cannot be forced."}}};
  }

  const std::shared_ptr<Gpus> shared_ = std::make_shared<Gpus>(*driver_);
  Gpus& gpus_ = *shared_;
  Gpu gpu_ = kHost;
  GpuMemory memory_{shared_, ways()};
  std::byte* array_ = nullptr;
};
const Driver* CudaGpuMemory::driver_ = nullptr;

TEST_F(CudaGpuMemory, an_allocation_is_found_from_each_of_its_bytes_until_it_is_freed) {
  GpuAllocation found, same;
  ASSERT_TRUE(memory_.find(array_, found) && memory_.find(array_ + kBytes - 1, same));
  EXPECT_EQ(found.begin, array_);
  EXPECT_EQ(found.bytes, kBytes);
  EXPECT_EQ(found.gpu, gpu_);
  EXPECT_TRUE(found.is_capable);
  EXPECT_EQ(found, same);
  free(array_);
  EXPECT_FALSE(memory_.find(array_, same));
  array_ = allocate();
  ASSERT_TRUE(memory_.find(array_, same));
  EXPECT_NE(found.buffer_id, same.buffer_id);
  std::byte of_host{};
  EXPECT_FALSE(memory_.find(&of_host, same));
}

TEST_F(CudaGpuMemory, sets_the_attribute_of_synchronous_copies) {
  GpuAllocation found;
  ASSERT_TRUE(memory_.find(array_, found));
  EXPECT_TRUE(memory_.set_sync_memops(found).ok());
  unsigned is_set = 0;
  EXPECT_EQ(
      driver_->call.cuPointerGetAttribute(&is_set, static_cast<int>(PointerAttribute::sync_memops),
                                          reinterpret_cast<Address>(array_)),
      kSuccess);
  EXPECT_EQ(is_set, 1u);
}

// A driver with dma-buf descriptors for multiples of 64 KiB.
struct DmaBufDriver {
  DmaBufDriver(const Functions& functions) : driver(changed(functions)) {}
  static Functions changed(Functions functions) {
    real = functions;
    functions.cuDeviceGetAttribute = [](int* value, int which, DeviceNumber device) {
      if (which != static_cast<int>(DeviceAttribute::dma_buf)) {
        return real.cuDeviceGetAttribute(value, which, device);
      }
      *value = 1;
      return kSuccess;
    };
    functions.cuMemGetHandleForAddressRange = [](void* handle, Address, std::size_t bytes, int type,
                                                 unsigned long long flags) {
      ContextHandle context = nullptr;
      real.cuCtxGetCurrent(&context);
      if (context == nullptr || type != kHandleTypeDmaBuf || flags != 0 || bytes % 65536 != 0) {
        return kInvalidValue;
      }
      *static_cast<int*>(handle) = ::eventfd(0, EFD_CLOEXEC);
      return kSuccess;
    };
    return functions;
  }

  static Functions real;
  Driver driver;
};
Functions DmaBufDriver::real;

TEST_F(CudaGpuMemory, gives_descriptors_or_says_why_there_is_none) {
  DmaBufDriver with(driver_->call);
  ASSERT_TRUE(with.driver.initialize().ok());
  const auto gpus = std::make_shared<Gpus>(with.driver);
  Gpu gpu = kHost;
  ASSERT_TRUE(gpus->use(0, gpu).ok());
  GpuMemory memory(gpus, {});
  Fd descriptor, none;
  const Status made = memory.dma_buf(gpu, {array_, 65536}, descriptor);
  EXPECT_TRUE(made.ok()) << made.message();
  EXPECT_TRUE(descriptor);
  EXPECT_THAT(memory.dma_buf(gpu, {array_, 4096}, none).message(),
              HasSubstr("cuMemGetHandleForAddressRange of 4 KiB"));
  Functions functions = DmaBufDriver::changed(driver_->call);
  functions.cuMemGetHandleForAddressRange = nullptr;
  Driver without(functions);
  ASSERT_TRUE(without.initialize().ok());
  const auto others = std::make_shared<Gpus>(without);
  ASSERT_TRUE(others->use(0, gpu).ok());
  GpuMemory old(others, {});
  EXPECT_THAT(old.dma_buf(gpu, {array_, 65536}, none).message(),
              HasSubstr("The driver gives no dma-buf of memory of the GPU cuda:0"));
}

TEST_F(CudaGpuMemory, leaves_the_caller_s_context) {
  const GpuFacts& facts = gpus_.facts(gpu_);
  EXPECT_EQ(memory_.write_flush(gpu_),
            write_flush_of(facts.capability, facts.writes_ordering, facts.flush_options));
  EXPECT_TRUE(memory_.flush(gpu_).ok());
  ContextHandle now = nullptr;
  EXPECT_EQ(driver_->call.cuCtxGetCurrent(&now), kSuccess);
  EXPECT_EQ(now, nullptr);
}

TEST_F(CudaGpuMemory, a_driver_without_the_call_flushes_by_reads) {
  Functions functions = driver_->call;
  functions.cuFlushGPUDirectRDMAWrites = nullptr;
  Driver without(functions);
  ASSERT_TRUE(without.initialize().ok());
  const auto gpus = std::make_shared<Gpus>(without);
  Gpu gpu = kHost;
  ASSERT_TRUE(gpus->use(0, gpu).ok());
  EXPECT_EQ(GpuMemory(gpus, {}).write_flush(gpu), WriteFlush::read) << "a Tesla K80";
}

TEST_F(CudaGpuMemory, has_the_ways_that_were_decided) {
  EXPECT_EQ(memory_.ways(gpu_), (GpuWays{.sends = false, .receives = true}));
  EXPECT_EQ(memory_.registrable_bytes(gpu_), 12345u);
  EXPECT_EQ(memory_.summary(), "cuda:0 send staged, receive direct");
  const GpuMemory other(shared_, {});
  EXPECT_EQ(other.ways(gpu_), GpuWays{});
  EXPECT_EQ(other.summary(), "cuda:0 send staged, receive staged");
}

TEST_F(CudaGpuMemory, warns_of_a_lost_way_once_and_refuses_what_cannot_be_forced_each_time) {
  testing::internal::CaptureStderr();
  const Log log(LogLevel::warning, 0);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(memory_.admit(gpu_, log).message(), "It cannot be forced.");
  }
  const std::string logged = testing::internal::GetCapturedStderr();
  EXPECT_THAT(logged, HasSubstr("The direct way is lost."));
  EXPECT_EQ(logged.find("The direct way", logged.find("The direct way") + 1), std::string::npos);
  EXPECT_TRUE(GpuMemory(shared_, {}).admit(gpu_, log).ok());
}

// The job uses a NIC that this machine does not have.
TEST_F(CudaGpuMemory, is_decided_for_the_nics_of_the_job_when_a_gpu_is_first_used) {
  std::unique_ptr<MemoryPool> pool;
  ASSERT_TRUE(MemoryPool::create(1 << 20, pool).ok());
  const auto open = [&](std::vector<std::string> nics, const char* setting) {
    std::unique_ptr<CudaMemory> opened;
    const Status status = CudaMemory::open({.library = library(),
                                            .pool = *pool,
                                            .log = Log::silent(0),
                                            .wake = [] {},
                                            .nics = std::move(nics),
                                            .gpudirect = gpudirect_from(setting).value(),
                                            .nvml_library = library()},
                                           opened);
    EXPECT_TRUE(status.ok()) << status.message();
    return opened;
  };
  Gpu gpu = kHost;
  const auto without = open({}, "force");
  EXPECT_TRUE(without->find(array_, gpu).ok());
  EXPECT_EQ(without->memory_for_nics(), nullptr);
  const auto automatic = open({"mlx5_9"}, "auto");
  EXPECT_TRUE(automatic->find(array_, gpu).ok());
  EXPECT_EQ(automatic->memory_for_nics()->summary(), "cuda:0 send staged, receive staged");
  const auto forced = open({"mlx5_9"}, "receive:force");
  const Status refused = forced->find(array_, gpu);
  EXPECT_EQ(refused.code(), Code::invalid);
  EXPECT_THAT(refused.message(), HasSubstr("mlx5_9 cannot write the memory of Tesla K80 (GPU-"));
  std::byte of_host{};
  EXPECT_TRUE(forced->find(&of_host, gpu).ok());
}

}  // namespace
}  // namespace rdmacoll::cuda
