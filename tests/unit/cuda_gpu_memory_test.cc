// Facts about GPU memory that NICs need, from the fake driver.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/eventfd.h>

#include <cstdlib>
#include <filesystem>

#include "cuda/gpu_memory.h"

namespace rdmacoll::cuda {
namespace {

using ::testing::HasSubstr;

TEST(CudaGpuMemoryPolicy, writes_of_nics_are_flushed_as_the_attributes_say) {
  struct Row {
    int ordering, options;
    bool has_call;
    WriteFlush way;
  };
  for (const Row& row : {Row{0, 0, true, WriteFlush::read}, Row{0, 1, true, WriteFlush::call},
                         Row{0, 1, false, WriteFlush::read}, Row{0, 2, true, WriteFlush::read},
                         Row{100, 1, true, WriteFlush::none}, Row{200, 0, false, WriteFlush::none},
                         Row{0, 0, false, WriteFlush::read}}) {
    GpuFacts facts;
    facts.writes_ordering = row.ordering;
    facts.flush_options = row.options;
    EXPECT_EQ(write_flush_of(facts, row.has_call), row.way)
        << row.ordering << " " << row.options << " " << row.has_call;
  }
}

// The driver lies beside this program.
class CudaGpuMemory : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    ::setenv("CUDA_SIM_MACHINE", "k80", 0);
    const auto folder = std::filesystem::read_symlink("/proc/self/exe").parent_path();
    const Status status = Driver::open((folder / "libcuda_sim.so").string(), driver_);
    ASSERT_TRUE(status.ok()) << status.message();
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
  Gpus gpus_{*driver_};
  Gpu gpu_ = kHost;
  int asked_ = 0;
  GpuMemory memory_{gpus_, [this](const std::string& uuid) {
                      EXPECT_THAT(uuid, HasSubstr("GPU-"));
                      return ++asked_ > 0 ? uint64_t{12345} : 0;
                    }};
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
  Gpus gpus(with.driver);
  Gpu gpu = kHost;
  ASSERT_TRUE(gpus.use(0, gpu).ok());
  GpuMemory memory(gpus, [](const std::string&) { return 0; });
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
  Gpus others(without);
  ASSERT_TRUE(others.use(0, gpu).ok());
  GpuMemory old(others, [](const std::string&) { return 0; });
  EXPECT_THAT(old.dma_buf(gpu, {array_, 65536}, none).message(),
              HasSubstr("The driver gives no dma-buf of memory of the GPU cuda:0"));
}

TEST_F(CudaGpuMemory, leaves_the_caller_s_context_and_asks_for_the_bar1_once) {
  EXPECT_EQ(memory_.registrable_bytes(gpu_), 12345u);
  EXPECT_EQ(memory_.registrable_bytes(gpu_), 12345u);
  EXPECT_EQ(asked_, 1);
  EXPECT_EQ(memory_.write_flush(gpu_), write_flush_of(gpus_.facts(gpu_), true));
  EXPECT_TRUE(memory_.flush(gpu_).ok());
  ContextHandle now = nullptr;
  EXPECT_EQ(driver_->call.cuCtxGetCurrent(&now), kSuccess);
  EXPECT_EQ(now, nullptr);
}

}  // namespace
}  // namespace rdmacoll::cuda
