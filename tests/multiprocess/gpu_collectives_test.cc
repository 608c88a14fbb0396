// The whole engine over real transports, with tensors in memory of GPUs. A fake CUDA driver
// emulates the GPUs: it ends the process if the host touches their memory, and its streams are
// late.
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "every_kind.h"
#include "multiprocess/device_arrays.h"
#include "multiprocess/local_world.h"
#include "sim/values.h"

namespace rdmacoll {
namespace {

struct GpuSetup {
  const char* name;
  const char* settings;
  bool (*is_on_gpu)(int rank, std::size_t operation);
  bool is_read_in_place = false;  // the arrays lie in memory of the engine
};

bool everything(int, std::size_t) { return true; }
bool first_rank(int rank, std::size_t) { return rank == 0; }
bool some(int rank, std::size_t operation) {
  return (static_cast<std::size_t>(rank) + operation) % 2 == 0;
}

constexpr GpuSetup kSetups[] = {
    {"shm", "RDMACOLL_TRANSPORT=shm\n", everything},
    {"shm_one_rank", "RDMACOLL_TRANSPORT=shm\n", first_rank},
    {"shm_some_workers", "RDMACOLL_TRANSPORT=shm\nRDMACOLL_COMPUTE_WORKERS=1\n", some},
    {"shm_ipc", "RDMACOLL_TRANSPORT=shm\nRDMACOLL_CUDA_IPC=always\n", everything},
    {"shm_ipc_some", "RDMACOLL_TRANSPORT=shm\nRDMACOLL_CUDA_IPC=always\n", some},
    {"shm_ipc_in_place", "RDMACOLL_TRANSPORT=shm\nRDMACOLL_CUDA_IPC=always\n", everything, true},
    {"tcp", "RDMACOLL_TRANSPORT=tcp\n", everything},
    {"tcp_one_rank", "RDMACOLL_TRANSPORT=tcp\n", first_rank},
    {"tcp_ring_small_segments",
     "RDMACOLL_TRANSPORT=tcp\nRDMACOLL_ALLREDUCE_ALGORITHM=ring\nRDMACOLL_SEGMENT_BYTES=4096\n",
     some},
};

// Runs sums on GPUs until the ranks, which are threads, read each other's memory there.
void share_gpus(LocalWorld& world) {
  constexpr std::size_t kCount = 20'000;
  for (int turn = 0; turn < 8; ++turn) {
    world.each([&](int rank) {
      DeviceCaller caller(rank % 2);
      std::vector<float> mine(kCount, 1.0f);
      Request request = in_place(Kind::allreduce, Dtype::float32, mine);
      Status status = caller.take(world.rank(rank), request);
      ASSERT_TRUE(status.ok()) << status.message();
      status = run(world.rank(rank), std::move(request));
      ASSERT_TRUE(status.ok()) << status.message();
      while (metric(world.rank(rank), "gpus_preparing") > 0) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
    });
  }
}

class GpuCollectives : public testing::TestWithParam<std::tuple<int, int>> {
 protected:
  int ranks() const { return std::get<0>(GetParam()); }
  const GpuSetup& setup() const { return kSetups[std::get<1>(GetParam())]; }
  std::string settings() const { return setup().settings + fake_cuda_settings(); }
  bool shares_gpus() const { return settings().find("CUDA_IPC") != std::string::npos; }
  // Whether GPUs have read other ranks' memory, as the settings demand.
  void expect_ways(LocalWorld& world) const {
    uint64_t bytes = 0;
    for (int rank = 0; rank < ranks(); ++rank) {
      bytes += metric(world.rank(rank), "bytes_between_gpus");
    }
    EXPECT_EQ(bytes > 0, shares_gpus() && ranks() > 1);
  }
};

TEST_P(GpuCollectives, every_kind_has_its_results) {
  LocalWorld world(ranks(), settings());
  if (HasFatalFailure()) return;
  if (shares_gpus()) share_gpus(world);
  for (const int64_t rows : {0, 1, 50, 2000}) {
    const std::vector<SimOperation> kinds = every_kind(ranks(), rows, rows == 50);
    world.each([&](int rank) {
      DeviceCaller caller(rank % 2);
      Session& session = world.rank(rank);
      if (setup().is_read_in_place) caller.take_memory_from(session);
      std::vector<SimMemory> memory(kinds.size());
      std::vector<OperationRef> operations;
      for (std::size_t i = 0; i < kinds.size(); ++i) {
        Request request = sim_request(kinds[i], rank, i % 2 == 0, memory[i]);
        const bool is_on_gpu = setup().is_on_gpu(rank, i);
        Status status = is_on_gpu ? caller.take(session, request) : Status();
        ASSERT_TRUE(status.ok()) << status.message();
        operations.push_back(std::make_shared<Operation>(std::move(request)));
        status = session.driver().submit(operations.back());
        ASSERT_TRUE(status.ok()) << status.message();
      }
      for (std::size_t i = 0; i < kinds.size(); ++i) {
        ASSERT_TRUE(session.driver().wait(*operations[i], 60 * kSecond)) << session.state();
        const Status status = follow_end(*operations[i]);
        ASSERT_TRUE(status.ok()) << status.message();
        if (setup().is_on_gpu(rank, i)) caller.fetch(*operations[i]);
        ASSERT_EQ(sim_error(kinds[i], ranks(), rank, *operations[i]), "")
            << kinds[i].name << " of " << rows << " rows on rank " << rank;
      }
    });
    if (HasFailure()) return;
  }
  expect_ways(world);
}

// A plan is followed, and the prepared operation notes the stream anew in each run.
TEST_P(GpuCollectives, repeated_sums_wait_for_their_stream_each_time) {
  LocalWorld world(ranks(), settings());
  if (HasFatalFailure()) return;
  constexpr std::size_t kCount = 3000;
  world.each([&](int rank) {
    DeviceCaller caller(rank % 2);
    Session& session = world.rank(rank);
    const bool is_on_gpu = setup().is_on_gpu(rank, 0);
    if (setup().is_read_in_place) caller.take_memory_from(session);
    std::vector<float> mine(kCount), sum(kCount);
    std::byte* const device = is_on_gpu ? caller.allocate(kCount * sizeof(float)) : nullptr;
    for (int step = 0; step < 25; ++step) {
      std::fill(mine.begin(), mine.end(), static_cast<float>(rank + step));
      Request request = in_place(Kind::allreduce, Dtype::float32, mine, "gradient");
      if (is_on_gpu) {
        caller.upload(device, mine.data(), kCount * sizeof(float));
        request.tensors[0].input = request.tensors[0].output = device;
        const Status status = use_stream(session, caller.stream(), request);
        ASSERT_TRUE(status.ok()) << status.message();
      }
      const Status status = run(session, std::move(request));
      ASSERT_TRUE(status.ok()) << status.message();
      if (is_on_gpu) caller.download(mine.data(), device, kCount * sizeof(float));
      const float wanted = static_cast<float>(ranks() * (ranks() - 1) / 2 + ranks() * step);
      ASSERT_EQ(mine, std::vector<float>(kCount, wanted)) << "step " << step;
    }
  });
}

// Ranks that are threads share two GPUs, so sums read memory of the own GPU and of the other one.
INSTANTIATE_TEST_SUITE_P(five_ranks, GpuCollectives,
                         testing::Combine(testing::Values(5), testing::Values(3, 4, 5)),
                         [](const auto& info) { return kSetups[std::get<1>(info.param)].name; });

INSTANTIATE_TEST_SUITE_P(worlds, GpuCollectives,
                         testing::Combine(testing::Values(1, 2, 3),
                                          testing::Range(0, static_cast<int>(std::size(kSetups)))),
                         [](const auto& info) {
                           return cat(std::get<0>(info.param), "_",
                                      kSetups[std::get<1>(info.param)].name);
                         });

TEST(GpuRequests, without_a_driver_are_refused_by_name) {
  LocalWorld world(1, "RDMACOLL_CUDA_LIBRARY=/nowhere/libcuda.so\n");
  std::vector<float> values(4);
  Request request = in_place(Kind::allreduce, Dtype::float32, values);
  const Status status = use_stream(world.rank(0), 1, request);
  EXPECT_EQ(status.code(), Code::invalid);
  EXPECT_NE(status.message().find("/nowhere/libcuda.so cannot be used"), std::string::npos)
      << status.message();
}

TEST(GpuRequests, are_refused_if_a_direct_way_is_forced_where_no_nic_moves_data) {
  const auto refusal = [](const std::string& transport, const std::string& setting) {
    LocalWorld world(2, cat("RDMACOLL_TRANSPORT=", transport, "\nRDMACOLL_GPUDIRECT=", setting,
                            "\n", fake_cuda_settings()));
    std::string message;
    world.each([&](int rank) {
      std::vector<float> values(4);  // the stream may still copy it when the caller ends
      DeviceCaller caller(rank);
      Request request = in_place(Kind::allreduce, Dtype::float32, values);
      const Status status = caller.take(world.rank(rank), request);
      if (rank == 0) message = status.message();
    });
    return message;
  };
  EXPECT_NE(refusal("tcp", "send:force")
                .find("RDMACOLL_GPUDIRECT=send:force,receive:auto, but data "
                      "goes over tcp, which no NIC moves by itself."),
            std::string::npos);
  EXPECT_EQ(refusal("shm", "force"), "ok") << "memory of one node";
  EXPECT_EQ(refusal("tcp", "off"), "ok");
}

TEST(GpuRequests, are_summarized) {
  LocalWorld world(2, "RDMACOLL_TRANSPORT=tcp\n" + fake_cuda_settings());
  EXPECT_EQ(world.rank(0).describe().find("memory of GPUs"), std::string::npos);
  world.each([&](int rank) {
    DeviceCaller caller(rank);
    std::vector<float> values(1 << 18);
    Request request = in_place(Kind::allreduce, Dtype::float32, values, "gradient");
    ASSERT_TRUE(caller.take(world.rank(rank), request).ok());
    ASSERT_TRUE(run(world.rank(rank), std::move(request)).ok());
  });
  const std::string described = world.rank(0).describe();
  EXPECT_NE(described.find("over tcp, memory of GPUs: 0 B sent and 0 B received direct, 2 MiB "
                           "staged, 0 B read from other GPUs"),
            std::string::npos)
      << described;
}

// The stream of one rank breaks before it reaches the operation.
TEST(GpuRequests, of_a_broken_stream_name_the_rank) {
  LocalWorld world(2, "RDMACOLL_TRANSPORT=tcp\n" + fake_cuda_settings());
  world.each([&](int rank) {
    std::vector<float> values(1000, 1.0F);
    Request request = in_place(Kind::allreduce, Dtype::float32, values, "gradient");
    if (rank == 1) {
      struct Broken final : StreamOrder {
        Status reached(bool&) override {
          return {Code::failed, "the GPU work was cut (CUDA_ERROR_ILLEGAL_ADDRESS)."};
        }
      };
      request.order = std::make_shared<Broken>();
    }
    const Status status = run(world.rank(rank), std::move(request));
    EXPECT_EQ(status.code(), Code::rank_failed) << status.message();
    EXPECT_EQ(status.detail().rank, JobRank(1));
    EXPECT_NE(status.message().find("before allreduce 'gradient'"), std::string::npos)
        << status.message();
    EXPECT_NE(status.message().find("CUDA_ERROR_ILLEGAL_ADDRESS"), std::string::npos);
  });
}

// The thread of the engine sleeps until its next deadline, which comes much later than the event.
TEST(GpuRequests, whose_event_passes_while_their_caller_leaves_are_not_forgotten) {
  LocalWorld world(1, "RDMACOLL_TRANSPORT=shm\n");
  struct PassesOnceArmedTwice final : StreamOrder {
    int armed = 0;
    Status reached(bool& is_reached) override {
      is_reached = armed > 1;
      return {};
    }
    bool arm() override { return ++armed < 2; }
  };
  Driver& driver = world.rank(0).driver();
  for (int turn = 0; turn < 3; ++turn) {
    std::vector<float> values(1000, 1.0F);
    Request request = in_place(Kind::allreduce, Dtype::float32, values, "gradient");
    request.order = std::make_shared<PassesOnceArmedTwice>();
    const auto operation = std::make_shared<Operation>(std::move(request));
    ASSERT_TRUE(driver.submit_and_wait(operation, 5 * kMillisecond).ok());
    const SteadyClock clock;
    for (const Nanoseconds begin = clock.now(); clock.now() < begin + 5 * kSecond;) {
      if (operation->done()) break;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    ASSERT_TRUE(operation->done()) << world.rank(0).state();
  }
}

// The wait is short, and a sleep would cost more than it.
TEST(GpuRequests, whose_stream_is_soon_done_are_waited_for_awake) {
  LocalWorld world(1, "RDMACOLL_TRANSPORT=shm\n" + fake_cuda_settings());
  struct PassesSoon final : StreamOrder {
    explicit PassesSoon(std::shared_ptr<StreamOrder> own) : order(std::move(own)) {}
    Status reached(bool& is_reached) override {
      const Status status = order->reached(is_reached);
      is_reached = is_reached && clock.now() >= due;
      return status;
    }
    bool arm() override {
      ++armed;
      return false;
    }
    const std::shared_ptr<StreamOrder> order;
    const SteadyClock clock;
    const Nanoseconds due = clock.now() + kMillisecond;
    int armed = 0;
  };
  DeviceCaller caller(0);
  std::byte* const device = caller.allocate(sizeof(float));
  std::vector<float> values(1);
  for (int turn = 0; turn < 20; ++turn) {
    caller.upload(device, values.data(), sizeof(float));
    Request request = in_place(Kind::allreduce, Dtype::float32, values, "gradient");
    request.tensors[0].input = request.tensors[0].output = device;
    ASSERT_TRUE(use_stream(world.rank(0), caller.stream(), request).ok());
    caller.synchronize();
    const auto order = std::make_shared<PassesSoon>(request.order);
    request.order = order;
    ASSERT_TRUE(run(world.rank(0), std::move(request)).ok());
    EXPECT_EQ(order->armed, 0) << "turn " << turn;
  }
}

// Shutdown ends operations that wait for a stream which never comes.
TEST(GpuRequests, end_with_the_engine_although_their_stream_is_late) {
  LocalWorld world(2, "RDMACOLL_TRANSPORT=shm\n");
  struct Never final : StreamOrder {
    Status reached(bool& is_reached) override {
      is_reached = false;
      return {};
    }
  };
  std::vector<OperationRef> operations(2);
  std::vector<float> values(1000, 1.0F);
  world.each([&](int rank) {
    Request request = in_place(Kind::allreduce, Dtype::float32, values, "gradient");
    request.order = std::make_shared<Never>();
    operations[rank] = std::make_shared<Operation>(std::move(request));
    ASSERT_TRUE(world.rank(rank).driver().submit(operations[rank]).ok());
    EXPECT_FALSE(world.rank(rank).driver().wait(*operations[rank], 20 * kMillisecond));
    EXPECT_NE(world.rank(rank).state().find("waits for callers' streams: allreduce 'gradient'"),
              std::string::npos)
        << world.rank(rank).state();
    EXPECT_EQ(world.rank(rank).in_flight(0), 1u);
  });
  world.close();
  for (const OperationRef& operation : operations) {
    ASSERT_TRUE(operation->done());
    EXPECT_FALSE(operation->status().ok());
  }
}

}  // namespace
}  // namespace rdmacoll
