// A caller with tensors in memory of a GPU, over the fake CUDA driver.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "api/device_requests.h"
#include "api/session.h"
#include "base/text.h"
#include "cuda/driver.h"
#include "cuda_sim/library.h"
#include "fetched_results.h"

namespace rdmacoll {

inline std::string fake_cuda_settings() {
  return cat("RDMACOLL_CUDA_LIBRARY=", cuda_sim::library_path(), "\n");
}

// Threads of several ranks call it at once.
inline const cuda::Driver& fake_cuda(const std::string& library = cuda_sim::library_path()) {
  const cuda::Driver* driver = nullptr;
  const Status status = cuda::Driver::open(library, driver);
  RC_ASSERT(status.ok(), status.message());
  return *driver;
}

inline uint64_t metric(Session& session, std::string_view name) {
  const std::string metrics = session.metrics();
  const std::string key = cat("\"", name, "\": ");
  const std::size_t at = metrics.find(key);
  EXPECT_NE(at, std::string::npos) << name;
  return at == std::string::npos ? 0 : std::stoull(metrics.substr(at + key.size()));
}

// The work of one thread on one GPU. Its stream and its memory end with it.
class DeviceCaller {
 public:
  explicit DeviceCaller(int ordinal, const cuda::Driver& driver = fake_cuda())
      : call_(driver.call) {
    must(call_.cuDeviceGet(&device_, ordinal));
    must(call_.cuDevicePrimaryCtxRetain(&context_, device_));
    must(call_.cuCtxPushCurrent_v2(context_));
    must(call_.cuStreamCreate(&stream_, cuda::kStreamNonBlocking));
  }
  ~DeviceCaller() {
    free();
    must(call_.cuStreamDestroy_v2(stream_));
    cuda::ContextHandle current = nullptr;
    must(call_.cuCtxPopCurrent_v2(&current));
    EXPECT_EQ(current, context_) << "another context was left behind";
    must(call_.cuDevicePrimaryCtxRelease_v2(device_));
  }
  DeviceCaller(const DeviceCaller&) = delete;
  DeviceCaller& operator=(const DeviceCaller&) = delete;

  uint64_t stream() const { return reinterpret_cast<uint64_t>(stream_); }
  // From now on memory is that of the session, which peers may read in place.
  void take_memory_from(Session& session) { lender_ = &session; }
  std::byte* allocate(std::size_t bytes) {
    if (lender_ != nullptr) {
      const Status status = lender_->allocate(device_, bytes, lent_.emplace_back());
      RC_ASSERT(status.ok(), status.message());
      return lent_.back().get();
    }
    cuda::Address address = 0;
    must(call_.cuMemAlloc_v2(&address, bytes + 1));
    memory_.push_back(address);
    return reinterpret_cast<std::byte*>(address);
  }
  // Frees all memory, after the work of the stream.
  void free() {
    synchronize();
    lent_.clear();
    for (const cuda::Address address : std::exchange(memory_, {})) {
      must(call_.cuMemFree_v2(address));
    }
  }
  // Moves the tensors of a request to the GPU. The stream still copies the inputs afterwards, so
  // they must stay until the operation has ended.
  Status take(Session& session, Request& request) {
    for (TensorRef& tensor : request.tensors) {
      const std::size_t bytes = tensor.bytes(request.dtype);
      const bool is_in_place = tensor.output == tensor.input;
      std::byte* const input = allocate(bytes);
      if (bytes > 0) {
        must(call_.cuMemsetD8Async(address_of(input), 0xdd, bytes, stream_));
        upload(input, tensor.input, bytes);
      }
      tensor.input = input;
      const bool has_output = tensor.output != nullptr && !row_of(request.kind).makes_result;
      tensor.output = !has_output ? nullptr : is_in_place ? input : allocate(bytes);
    }
    return use_stream(session, stream(), request);
  }
  void fetch(Operation& operation) {
    fetch_results(operation, kept_, [this](const std::byte* memory, std::size_t bytes) {
      return fetched(memory, bytes);
    });
  }
  // The stream still copies when it returns.
  void upload(std::byte* into, const void* from, std::size_t bytes) {
    must(call_.cuMemcpyHtoDAsync_v2(address_of(into), from, bytes, stream_));
  }
  void download(void* into, const std::byte* from, std::size_t bytes) {
    must(call_.cuMemcpyDtoHAsync_v2(into, address_of(from), bytes, stream_));
    synchronize();
  }
  void synchronize() { must(call_.cuStreamSynchronize(stream_)); }

 private:
  static cuda::Address address_of(const std::byte* memory) {
    return reinterpret_cast<cuda::Address>(memory);
  }
  static void must(cuda::Result result) { RC_ASSERT(result == cuda::kSuccess, cat(result)); }
  std::shared_ptr<std::byte[]> fetched(const std::byte* memory, std::size_t bytes) {
    std::shared_ptr<std::byte[]> copy(new std::byte[bytes + 1]);
    if (bytes > 0) download(copy.get(), memory, bytes);
    return copy;
  }

  const cuda::Functions& call_;
  Session* lender_ = nullptr;
  cuda::DeviceNumber device_ = 0;
  cuda::ContextHandle context_ = nullptr;
  cuda::StreamHandle stream_ = nullptr;
  std::vector<cuda::Address> memory_;
  std::vector<std::shared_ptr<std::byte[]>> kept_, lent_;
};

}  // namespace rdmacoll
