// The ends of operations with arrays on a GPU: the first end, when all work is enqueued, and the
// end of the work. Rank 0 has its arrays on a GPU whose streams stand still until the test lets
// them run, and rank 1 has them on the host.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "api/device_requests.h"
#include "compute/inline.h"
#include "cuda/cuda_memory.h"
#include "engine/engine.h"
#include "every_kind.h"
#include "fetched_results.h"
#include "sim/values.h"
#include "transport/sim/sim_transport.h"
#include "unit/scripted_cuda.h"

namespace rdmacoll::cuda_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr int64_t kElements = 5000;
constexpr int kTurnsMax = 5000;

uint64_t number_of(StreamHandle stream) { return reinterpret_cast<uint64_t>(stream); }

World world_of(int rank) {
  World world{"test", 1, rank, {}};
  for (int r = 0; r < 2; ++r) world.members.push_back({"here", 100 + r, 0});
  return world;
}

// One operation of both ranks: values at the ranks, and rank 0's memory on the GPU.
struct Both {
  float* memory = nullptr;  // lies on the GPU
  std::vector<float> values;
  OperationRef on_gpu, on_host;
};

class CudaEnds : public ::testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    for (auto& pool : pools) ASSERT_TRUE(MemoryPool::create(std::size_t{32} << 20, pool).ok());
    memory = std::make_unique<CudaMemory>(
        cuda.driver(), CudaOptions{"", *pools[0], Log(LogLevel::warning, 0), [] {}});
    compute = std::make_unique<GpuCompute>(std::make_unique<InlineCompute>(), network.clock());
    compute->open(memory->parts());
    for (int rank = 0; rank < 2; ++rank) {
      network.transport(rank).use_pool(*pools[static_cast<std::size_t>(rank)]);
      Compute& own = rank == 0 ? static_cast<Compute&>(*compute) : host;
      engines.push_back(std::make_unique<Engine>(EngineParts{world_of(rank),
                                                             {},
                                                             network.transport(rank),
                                                             own,
                                                             *pools[static_cast<std::size_t>(rank)],
                                                             network.clock(),
                                                             Log(LogLevel::warning, rank)}));
    }
    caller = cuda.stream_of_caller();
  }
  void TearDown() override {
    operations.clear();
    cuda.run();
    for (const auto& engine : engines) engine->end();
    engines.clear();
    compute.reset();
    memory.reset();
    EXPECT_THAT(cuda.misuse, IsEmpty());
  }

  void turn() {
    for (const auto& engine : engines) engine->progress();
    if (!network.step()) network.clock().advance_to(network.clock().now() + kMicrosecond);
  }
  // Takes turns until `is_over`, and lets the GPU do all work between them but uploads.
  bool drive(const std::function<bool()>& is_over, bool runs_uploads = true) {
    for (int i = 0; i < kTurnsMax && !is_over(); ++i) {
      turn();
      if (!is_over()) run_streams(runs_uploads);
    }
    return is_over();
  }
  void run_streams(bool runs_uploads) {
    for (bool moved = true; moved;) {
      moved = false;
      for (std::size_t i = 0; i < cuda.streams.size(); ++i) {
        Stream& stream = *cuda.streams[i];
        const bool uploads =
            !stream.queue.empty() && stream.queue.front().what.starts_with("cuMemcpyHtoDAsync");
        if (!uploads || runs_uploads) moved |= cuda.step(stream);
      }
    }
  }

  // Submits a sum of both ranks, in place. `change` may change the requests.
  Both submit(float value, const std::function<void(Request&, int rank)>& change = {}) {
    Both both;
    both.memory = reinterpret_cast<float*>(cuda.place(kElements * sizeof(float)));
    std::fill_n(both.memory, kElements, value);
    both.values.assign(kElements, 10 * value);
    for (int rank = 0; rank < 2; ++rank) {
      Request request;
      request.kind = Kind::allreduce;
      request.dtype = Dtype::float32;
      auto* data = reinterpret_cast<std::byte*>(rank == 0 ? both.memory : both.values.data());
      request.tensors = {{data, data, {kElements}, ""}};
      if (change) change(request, rank);
      if (rank == 0) {
        const Status status = use_stream(*memory, number_of(caller), true, request);
        EXPECT_TRUE(status.ok()) << status.message();
      }
      const auto operation = std::make_shared<Operation>(std::move(request));
      EXPECT_TRUE(engines[static_cast<std::size_t>(rank)]->submit(operation).ok());
      (rank == 0 ? both.on_gpu : both.on_host) = operation;
      operations.push_back(operation);
    }
    return both;
  }
  // Moves the tensors of rank 0's request to the GPU.
  void move_to_gpu(Request& request) {
    for (TensorRef& tensor : request.tensors) {
      const std::size_t bytes = tensor.bytes(request.dtype);
      std::byte* const input = cuda.place(bytes + 1);
      std::copy_n(tensor.input, bytes, input);
      tensor.input = input;
      if (tensor.output != nullptr) tensor.output = cuda.place(bytes + 1);
    }
    const Status status = use_stream(*memory, number_of(caller), true, request);
    EXPECT_TRUE(status.ok()) << status.message();
  }
  // A copy of the array on the caller's stream, as a kernel behind the call would see it.
  float* read(const Both& both) {
    auto* const to = cuda.place(kElements * sizeof(float));
    ScriptedCuda::current() = {&cuda.contexts[0]};
    EXPECT_EQ(cuda.functions().cuMemcpyDtoDAsync_v2(reinterpret_cast<Address>(to),
                                                    reinterpret_cast<Address>(both.memory),
                                                    kElements * sizeof(float), caller),
              kSuccess);
    ScriptedCuda::current().clear();
    return reinterpret_cast<float*>(to);
  }
  static bool are_all(const float* values, float value) {
    return std::all_of(values, values + kElements, [&](float one) { return one == value; });
  }
  static bool has_passed(const Operation& operation) {
    bool has_passed = false;
    EXPECT_TRUE(operation.gpu_end->passed(has_passed).ok());
    return has_passed;
  }
  Engine& engine() { return *engines[0]; }

  ScriptedCuda cuda{1};
  SimNetwork network{2, SimPolicy{.views = GetParam()}};
  std::array<std::unique_ptr<MemoryPool>, 2> pools;
  std::unique_ptr<CudaMemory> memory;
  std::unique_ptr<GpuCompute> compute;
  InlineCompute host;
  std::vector<std::unique_ptr<Engine>> engines;
  std::vector<OperationRef> operations;
  StreamHandle caller = nullptr;
};

TEST_P(CudaEnds, a_call_returns_before_the_last_copy_and_its_stream_waits_for_it) {
  const Both both = submit(1);
  ASSERT_TRUE(drive([&] { return both.on_gpu->done(); }));
  EXPECT_FALSE(are_all(both.memory, 11)) << "the host has waited for the GPU";
  ASSERT_NE(both.on_gpu->gpu_end, nullptr);
  EXPECT_FALSE(has_passed(*both.on_gpu));
  ASSERT_TRUE(follow_end(*both.on_gpu).ok());
  const float* const seen = read(both);
  while (cuda.step(*cuda.stream(caller))) {
  }
  EXPECT_FALSE(cuda.stream(caller)->queue.empty()) << "the stream waits for nothing";
  cuda.run();
  EXPECT_TRUE(are_all(seen, 11));
  EXPECT_TRUE(has_passed(*both.on_gpu));
  ASSERT_TRUE(drive([&] { return both.on_host->done(); }));
  EXPECT_TRUE(are_all(both.values.data(), 11));
}

// More operations than the engine runs at once. None may write to memory from which a GPU copies.
TEST_P(CudaEnds, memory_of_the_pool_stays_until_the_work_is_done) {
  std::vector<Both> all;
  for (int i = 0; i < kBatchesInFlight + 2; ++i) {
    all.push_back(submit(static_cast<float>(i + 1)));
    (void)drive([&] { return all.back().on_gpu->done(); }, false);
  }
  EXPECT_TRUE(all.front().on_gpu->done());
  EXPECT_FALSE(all.back().on_gpu->done()) << "a place that a GPU reads was used again";
  ASSERT_TRUE(drive([&] { return all.back().on_gpu->done(); }));
  cuda.run();
  for (std::size_t i = 0; i < all.size(); ++i) {
    EXPECT_TRUE(are_all(all[i].memory, 11 * static_cast<float>(i + 1))) << i;
  }
}

// A result belongs to its operation, whose caller may let go of it at once.
TEST_P(CudaEnds, memory_of_results_stays_until_the_work_is_done) {
  Gpu gpu = kHost;
  ASSERT_TRUE(memory->find_stream(number_of(caller), gpu).ok());
  std::vector<float> own(kElements, 2);
  auto* const input = cuda.place(kElements * sizeof(float));
  for (int rank = 0; rank < 2; ++rank) {
    Request request;
    request.kind = Kind::allgather;
    request.dtype = Dtype::float32;
    const auto* data = rank == 0 ? input : reinterpret_cast<const std::byte*>(own.data());
    request.tensors = {{data, nullptr, {kElements}, ""}};
    if (rank == 0) {
      ASSERT_TRUE(use_stream(*memory, number_of(caller), true, request).ok());
    }
    operations.push_back(std::make_shared<Operation>(std::move(request)));
    ASSERT_TRUE(engines[static_cast<std::size_t>(rank)]->submit(operations.back()).ok());
  }
  ASSERT_TRUE(drive([&] { return operations[0]->done(); }));
  const std::shared_ptr<const GpuEnd> end = operations[0]->gpu_end;
  ASSERT_NE(end, nullptr);
  const std::byte* const result = operations[0]->results.at(0).memory.get();
  const uint64_t bytes = operations[0]->results.at(0).bytes;
  operations.erase(operations.begin());
  EXPECT_NE(memory->allocate(gpu, bytes).get(), result) << "a GPU still writes to it";
  bool has_ended = false;
  ASSERT_TRUE(drive([&] { return end->passed(has_ended).ok() && has_ended; }));
  turn();
  std::vector<std::shared_ptr<std::byte[]>> next;
  for (int i = 0; i < 2; ++i) next.push_back(memory->allocate(gpu, bytes));
  EXPECT_TRUE(next[0].get() == result || next[1].get() == result) << "it is never given back";
}

TEST_P(CudaEnds, a_failure_after_the_first_end_is_that_of_the_next_call) {
  const Both both = submit(1);
  ASSERT_TRUE(drive([&] { return both.on_gpu->done(); }));
  EXPECT_TRUE(both.on_gpu->status().ok());
  cuda.fails["cuEventQuery"] = kIllegalAddress;
  EXPECT_TRUE(follow_end(*both.on_gpu).ok()) << "the stream could wait";
  turn();
  EXPECT_THAT(engine().failure().message(),
              AllOf(HasSubstr("cuda:0"), HasSubstr("CUDA_ERROR_ILLEGAL_ADDRESS")));
  const auto next = std::make_shared<Operation>(Request{{.kind = Kind::barrier}});
  EXPECT_THAT(engine().submit(next).message(), HasSubstr("CUDA_ERROR_ILLEGAL_ADDRESS"));
  cuda.fails.clear();
}

TEST_P(CudaEnds, a_failure_after_the_first_end_is_not_lost_in_a_shutdown) {
  const Both both = submit(1);
  ASSERT_TRUE(drive([&] { return both.on_gpu->done(); }));
  engine().leave("");
  turn();
  EXPECT_FALSE(engine().may_end()) << "the GPU still uses memory of this rank";
  cuda.fails["cuEventQuery"] = kIllegalAddress;
  turn();
  EXPECT_THAT(engine().failure().message(), HasSubstr("CUDA_ERROR_ILLEGAL_ADDRESS"));
  cuda.fails.clear();
}

// No call follows that could raise the error.
TEST_P(CudaEnds, a_peer_that_dies_behind_the_last_call_is_named_by_the_shutdown) {
  const Both both = submit(1);
  ASSERT_TRUE(drive([&] { return both.on_gpu->done() && both.on_host->done(); }));
  cuda.run();
  network.kill(1);
  engine().leave("");
  testing::internal::CaptureStderr();
  for (int i = 0; i < kTurnsMax && !engine().may_end(); ++i) turn();
  engine().end();
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_THAT(said, AllOf(HasSubstr("warning: rank 1 (here"), HasSubstr("results are complete")));
  EXPECT_EQ(std::count(said.begin(), said.end(), '\n'), 1) << said;
  EXPECT_TRUE(are_all(both.memory, 11));
}

// The stream of a caller cannot wait while it is captured.
TEST_P(CudaEnds, the_host_waits_for_a_stream_that_cannot) {
  const Both both = submit(1);
  ASSERT_TRUE(drive([&] { return both.on_gpu->done(); }));
  cuda.stream(caller)->is_capturing = true;
  cuda.after_query = [this] { cuda.run(); };
  EXPECT_TRUE(follow_end(*both.on_gpu).ok());
  EXPECT_TRUE(has_passed(*both.on_gpu));
  EXPECT_TRUE(cuda.stream(caller)->queue.empty()) << "the graph would have got a part";
  EXPECT_TRUE(are_all(both.memory, 11));
}

TEST_P(CudaEnds, the_end_of_a_broken_gpu_is_an_error_of_the_call) {
  const Both both = submit(1);
  ASSERT_TRUE(drive([&] { return both.on_gpu->done(); }));
  cuda.fails["cuStreamWaitEvent"] = kIllegalAddress;
  cuda.fails["cuEventQuery"] = kIllegalAddress;
  EXPECT_THAT(follow_end(*both.on_gpu).message(), HasSubstr("CUDA_ERROR_ILLEGAL_ADDRESS"));
  cuda.fails.clear();
}

// A callback has promised complete results.
TEST_P(CudaEnds, a_callback_comes_after_the_last_copy) {
  int calls = 0;
  const Both both = submit(1, [&](Request& request, int rank) {
    if (rank == 0) request.done = [&calls](const Status&) { ++calls; };
  });
  (void)drive([&] { return both.on_gpu->done(); }, false);
  EXPECT_EQ(calls, 0);
  EXPECT_FALSE(are_all(both.memory, 11));
  ASSERT_TRUE(drive([&] { return both.on_gpu->done(); }));
  EXPECT_EQ(calls, 1);
  EXPECT_TRUE(are_all(both.memory, 11));
  EXPECT_EQ(both.on_gpu->gpu_end, nullptr);
}

// A peer may die or fail when this rank's call has returned. Its memory may have other contents
// then, and nobody would say so before the next call.
TEST_P(CudaEnds, no_result_depends_on_memory_of_peers_after_the_first_end) {
  int early = 0;
  for (const int64_t rows : {0, 1, 50, 2000}) {
    for (const SimOperation& kind : every_kind(2, rows, false)) {
      std::array<SimMemory, 2> own;
      for (int rank = 0; rank < 2; ++rank) {
        Request request = sim_request(kind, rank, false, own[static_cast<std::size_t>(rank)]);
        if (rank == 0) move_to_gpu(request);
        operations.push_back(std::make_shared<Operation>(std::move(request)));
        ASSERT_TRUE(engines[static_cast<std::size_t>(rank)]->submit(operations.back()).ok());
      }
      Operation& on_gpu = **(operations.end() - 2);
      ASSERT_TRUE(drive([&] { return on_gpu.done(); })) << kind.name << " of " << rows;
      ASSERT_TRUE(on_gpu.status().ok()) << on_gpu.status().message();
      early += on_gpu.gpu_end != nullptr && !has_passed(on_gpu) ? 1 : 0;
      std::memset(pools[1]->base(), 0xee, pools[1]->size());
      for (auto* all : {&own[1].inputs, &own[1].outputs}) {
        for (std::vector<std::byte>& one : *all) std::fill(one.begin(), one.end(), std::byte{0xee});
      }
      cuda.run();
      std::vector<std::shared_ptr<std::byte[]>> kept;
      fetch_results(on_gpu, kept, [](const std::byte* memory, std::size_t bytes) {
        std::shared_ptr<std::byte[]> copy(new std::byte[bytes]);
        std::copy_n(memory, bytes, copy.get());
        return copy;
      });
      EXPECT_EQ(sim_error(kind, 2, 0, on_gpu), "") << kind.name << " of " << rows;
      ASSERT_TRUE(drive([&] { return operations.back()->done(); }));
    }
  }
  EXPECT_GT(early, 10);
}

// A prepared operation runs again on the caller's stream, so its next run begins after the end.
TEST_P(CudaEnds, an_operation_runs_again_after_the_end_of_its_last_run) {
  Both both = submit(1);
  for (int run = 1; run <= 3; ++run) {
    ASSERT_TRUE(drive([&] { return both.on_gpu->done() && both.on_host->done(); })) << run;
    ASSERT_TRUE(follow_end(*both.on_gpu).ok());
    Operation& operation = *both.on_gpu;
    operation.rearm();
    both.on_host->rearm();
    ASSERT_TRUE(use_stream(*memory, number_of(caller), true, operation.request).ok());
    ASSERT_TRUE(engines[0]->submit(both.on_gpu).ok());
    ASSERT_TRUE(engines[1]->submit(both.on_host).ok());
  }
  ASSERT_TRUE(drive([&] { return both.on_gpu->done() && both.on_host->done(); }));
  cuda.run();
  EXPECT_TRUE(are_all(both.memory, 88)) << both.memory[0];
}

// Nothing waits for the end of the last copy. The next call finds it, or the thread later.
TEST_P(CudaEnds, no_thread_is_called_for_the_last_copy) {
  const Both both = submit(1);
  ASSERT_TRUE(drive([&] { return both.on_gpu->done(); }));
  for (int i = 0; i < 100; ++i) turn();
  EXPECT_TRUE(both.on_host->done());
  EXPECT_FALSE(engine().needs_driver());
  EXPECT_FALSE(engine().may_end());
  cuda.run();
  for (int i = 0; i < 100; ++i) turn();
  EXPECT_TRUE(are_all(both.memory, 11));
}

INSTANTIATE_TEST_SUITE_P(OfPeers, CudaEnds, testing::Bool(), [](const auto& one) {
  return std::string(one.param ? "whose_memory_is_read" : "that_send");
});

}  // namespace
}  // namespace rdmacoll::cuda_test
