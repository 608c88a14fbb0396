// The GPUs that this process uses. A GPU is used from the first array in its memory on, and only
// then has a context.
#pragma once

#include <array>
#include <atomic>
#include <mutex>
#include <optional>
#include <string>

#include "cuda/driver.h"
#include "memory/memory_kind.h"

namespace rdmacoll::cuda {

struct GpuFacts {
  int ordinal = 0;          // CUDA's number, which CUDA_VISIBLE_DEVICES changes
  DeviceNumber device = 0;  // the driver's handle of it
  std::string name;         // "Tesla K80"
  std::string uuid;         // "GPU-12345678-...", or "MIG-12345678-..." for a part of a GPU
  std::string pci;          // "0000:04:00.0"
  std::size_t bytes = 0;
  int capability = 0;  // 37: 3.7
  int multiprocessors = 0;
  int compute_mode = kComputeModeDefault;
  bool has_gpudirect = false;
  bool has_dma_buf = false;
  // Values of the driver's attributes of these names. Empty if the driver is too old to have them.
  std::optional<int> flush_options;
  std::optional<int> writes_ordering;

  std::string text() const;  // "the GPU cuda:0 (Tesla K80, GPU-12345678-...)"
};

class Gpus {
 public:
  static constexpr int kGpusMax = 64;

  explicit Gpus(const Driver& driver) : driver_(driver) {}
  // Releases the contexts. Memory and streams of the engine in them must be gone.
  ~Gpus();
  Gpus(const Gpus&) = delete;
  Gpus& operator=(const Gpus&) = delete;

  // The GPU with this number of CUDA. At its first use, its primary context is retained. Any thread
  // may call it.
  Status use(int ordinal, Gpu& gpu);
  Status use_device(DeviceNumber device, Gpu& gpu);  // by the driver's handle
  // CUDA's number of the GPU with this UUID, whether it is used or not.
  Status find(const std::string& uuid, int& ordinal) const;

  // The next functions take only numbers that use() has returned. Any thread may call them.
  ContextHandle context(Gpu gpu) const { return used_[index(gpu)].context; }
  const GpuFacts& facts(Gpu gpu) const { return used_[index(gpu)].facts; }
  int size() const { return count_.load(std::memory_order_acquire); }
  const Driver& driver() const { return driver_; }

 private:
  struct Used {
    GpuFacts facts;
    ContextHandle context = nullptr;
  };
  std::size_t index(Gpu gpu) const;
  bool find_used(int ordinal, Gpu& gpu) const;
  Status retain(Used& used) const;

  const Driver& driver_;
  std::mutex mutex_;
  std::array<Used, kGpusMax> used_;
  std::atomic<int> count_{0};
};

// The end of a message about a kernel that cannot copy small pieces: each is copied by itself.
inline constexpr const char* kSlowerCopies = " Many small tensors are copied more slowly without.";

// Reads the facts of a device, without a context.
Status read_facts(const Driver& driver, int ordinal, GpuFacts& facts);

// Lets this thread call the driver while another one captures a CUDA graph. Otherwise calls would
// fail, and would spoil the capture.
class RelaxedCapture {
 public:
  explicit RelaxedCapture(const Driver& driver) : driver_(driver) { exchange(); }
  ~RelaxedCapture() { exchange(); }
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;

 private:
  void exchange() {
    if (driver_.call.cuThreadExchangeStreamCaptureMode == nullptr) return;
    driver_.call.cuThreadExchangeStreamCaptureMode(&mode_);
  }

  const Driver& driver_;
  int mode_ = kCaptureRelaxed;  // the other one of the two that are exchanged
};

// Makes a context the thread's current one. The end makes the earlier one current again, which is
// the caller's.
class ScopedContext {
 public:
  ScopedContext(const Driver& driver, ContextHandle context)
      : relaxed_(driver),
        driver_(driver),
        status_(driver.check(driver.call.cuCtxPushCurrent_v2(context), "cuCtxPushCurrent")) {}
  ScopedContext(const Gpus& gpus, Gpu gpu) : ScopedContext(gpus.driver(), gpus.context(gpu)) {}
  ~ScopedContext() {
    ContextHandle popped = nullptr;
    if (status_.ok()) driver_.call.cuCtxPopCurrent_v2(&popped);
  }
  ScopedContext(const ScopedContext&) = delete;
  ScopedContext& operator=(const ScopedContext&) = delete;

  const Status& status() const { return status_; }

 private:
  const RelaxedCapture relaxed_;
  const Driver& driver_;
  const Status status_;
};

}  // namespace rdmacoll::cuda
