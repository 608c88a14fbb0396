// Requests with a CUDA stream: where their tensors are, and what orders them.
#include "api/device_requests.h"

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

namespace rdmacoll {
namespace {

struct NoOrder final : StreamOrder {
  Status reached(bool& is_reached) override {
    is_reached = true;
    return {};
  }
};

// Addresses of known GPUs. All others are host memory.
struct FakeMemory final : DeviceMemory {
  std::map<const void*, Gpu> gpus;
  Gpu of_streams = 1;
  std::vector<std::string> calls;
  Status recorded;

  Status use(int number, Gpu& gpu) override {
    gpu = static_cast<Gpu>(number);
    return {};
  }
  int number_of(Gpu gpu) const override { return gpu + 4; }
  Status find(const void* memory, Gpu& gpu) override {
    const auto found = gpus.find(memory);
    gpu = found == gpus.end() ? kHost : found->second;
    return {};
  }
  Status find_stream(uint64_t stream, Gpu& gpu) override {
    calls.push_back("stream " + std::to_string(stream));
    gpu = of_streams;
    return {};
  }
  Status order(uint64_t stream, Gpu gpu, std::shared_ptr<StreamOrder>& order) override {
    calls.push_back("order " + std::to_string(stream) + " on " + std::to_string(gpu));
    if (recorded.ok()) order = std::make_shared<NoOrder>();
    return recorded;
  }
  Status copy(std::span<const HostCopy>, CopyTo, Gpu, uint64_t) override { return Status::busy(); }
  void pin(std::span<const HostCopy>, Gpu) override {}
  Status follow(Gpu gpu, uint64_t stream, uint64_t follower) override {
    calls.push_back(std::to_string(follower) + " follows " + std::to_string(stream) + " on " +
                    std::to_string(gpu));
    return {};
  }
  std::shared_ptr<std::byte[]> allocate(Gpu gpu, uint64_t bytes) override {
    calls.push_back("allocate " + std::to_string(bytes) + " on " + std::to_string(gpu));
    return std::make_shared<std::byte[]>(bytes);
  }
  std::shared_ptr<std::byte[]> allocate_array(Gpu, uint64_t) override { return nullptr; }
  void retire(std::shared_ptr<std::byte[]>, uint64_t stream) override {
    calls.push_back("retire on " + std::to_string(stream));
  }
};

class StreamRequests : public testing::Test {
 protected:
  // A request for one tensor of the given addresses.
  Request request_of(std::byte* input, std::byte* output, Kind kind = Kind::allreduce) {
    Request request;
    request.kind = kind;
    request.tensors = {{input, output, {4}, "gradient"}};
    return request;
  }

  FakeMemory memory_;
  std::byte first_[64], second_[64];
};

TEST_F(StreamRequests, know_the_gpu_of_their_tensors) {
  memory_.gpus = {{first_, 3}, {second_, 3}};
  Request in_place = request_of(first_, first_), apart = request_of(first_, second_);
  for (Request* request : {&in_place, &apart}) {
    ASSERT_TRUE(use_stream(memory_, 2, true, *request).ok());
    EXPECT_EQ(request->tensors[0].gpu, 3);
    EXPECT_NE(request->order, nullptr);
  }
  EXPECT_EQ(memory_.calls, (std::vector<std::string>{"order 2 on 3", "order 2 on 3"}));
}

TEST_F(StreamRequests, have_results_on_the_gpu_of_their_inputs) {
  memory_.gpus = {{first_, 0}};
  Request request = request_of(first_, nullptr, Kind::allgather);
  ASSERT_TRUE(use_stream(memory_, 7777, true, request).ok());
  EXPECT_EQ(request.tensors[0].gpu, 0);
  EXPECT_NE(request.result_memory(12), nullptr);
  EXPECT_EQ(memory_.calls.back(), "allocate 12 on 0");
}

// Only the root of a scatter has an input, so the stream tells the others where results belong.
TEST_F(StreamRequests, without_memory_use_the_gpu_of_the_stream) {
  Request request = request_of(second_, nullptr, Kind::scatter);
  ASSERT_TRUE(use_stream(memory_, 7777, false, request).ok());
  EXPECT_EQ(request.tensors[0].gpu, 1);
  EXPECT_EQ(memory_.calls, (std::vector<std::string>{"stream 7777", "order 7777 on 1"}));
}

TEST_F(StreamRequests, in_memory_that_the_host_reads_wait_for_the_stream_all_the_same) {
  Request request = request_of(first_, first_);
  ASSERT_TRUE(use_stream(memory_, 1, true, request).ok());
  EXPECT_EQ(request.tensors[0].gpu, kHost);
  EXPECT_NE(request.order, nullptr);
  EXPECT_FALSE(request.result_memory);
  EXPECT_EQ(memory_.calls, (std::vector<std::string>{"stream 1", "order 1 on 1"}));
}

// Managed memory, whose pages move.
TEST_F(StreamRequests, have_no_memory_that_a_nic_may_keep) {
  memory_.gpus = {{second_, 2}};
  Request request = request_of(first_, first_);
  EXPECT_TRUE(may_be_pinned(request, request.tensors[0]));
  request.tensors.push_back({second_, second_, {4}, "other"});
  ASSERT_TRUE(use_stream(memory_, 1, true, request).ok());
  for (const TensorRef& tensor : request.tensors) EXPECT_FALSE(may_be_pinned(request, tensor));
}

TEST_F(StreamRequests, of_a_broadcast_ignore_inputs_that_are_not_read) {
  memory_.gpus = {{second_, 2}};
  Request request = request_of(first_, second_, Kind::broadcast);
  ASSERT_TRUE(use_stream(memory_, 1, false, request).ok());
  EXPECT_EQ(request.tensors[0].gpu, 2);
}

TEST_F(StreamRequests, with_input_and_output_on_different_devices_are_refused) {
  memory_.gpus = {{first_, 0}};
  Request request = request_of(first_, second_);
  const Status status = use_stream(memory_, 1, true, request);
  EXPECT_EQ(status.code(), Code::invalid);
  EXPECT_EQ(status.message(),
            "'gradient' has its input in memory of cuda:4 and its output in host memory: give both "
            "on the same device.");
}

// The end of an allocation, as an empty slice has it, is no address of this allocation.
TEST_F(StreamRequests, with_an_empty_tensor_use_the_gpu_of_the_others) {
  memory_.gpus = {{first_, 3}};
  Request request = request_of(second_, nullptr, Kind::allgather);
  request.tensors[0].dims = {0, 4};
  request.tensors.push_back({first_, nullptr, {4}, "other"});
  ASSERT_TRUE(use_stream(memory_, 1, true, request).ok());
  EXPECT_EQ(request.tensors[0].gpu, 3);
  EXPECT_EQ(request.tensors[1].gpu, 3);
  EXPECT_EQ(memory_.calls, (std::vector<std::string>{"order 1 on 3"}));
}

TEST_F(StreamRequests, make_no_results_for_memory_that_the_host_reads) {
  Request request = request_of(first_, nullptr, Kind::allgather);
  EXPECT_EQ(use_stream(memory_, 1, true, request).message(),
            "'gradient' is in managed or host memory, and results of allgather would be in memory "
            "of a GPU: copy it to the GPU first.");
}

TEST_F(StreamRequests, make_results_on_one_gpu_only) {
  memory_.gpus = {{first_, 0}, {second_, 1}};
  Request request = request_of(first_, nullptr, Kind::allgather);
  request.tensors.push_back({second_, nullptr, {4}, "other"});
  EXPECT_EQ(use_stream(memory_, 1, true, request).message(),
            "'other' is in memory of cuda:5, and the first tensor in memory of cuda:4: make a call "
            "for each GPU.");
}

TEST_F(StreamRequests, do_not_share_their_results) {
  Request request = request_of(first_, nullptr);
  request.shares_results = true;
  EXPECT_EQ(use_stream(memory_, 1, true, request).code(), Code::invalid);
}

TEST_F(StreamRequests, report_a_stream_that_takes_no_event) {
  memory_.recorded = {Code::invalid, "the stream is being captured."};
  Request request = request_of(first_, first_);
  EXPECT_EQ(use_stream(memory_, 1, true, request).message(), "the stream is being captured.");
}

}  // namespace
}  // namespace rdmacoll
