// Tests synchronous parameter servers beside the workers, over real transports.
#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <random>

#include "every_kind.h"
#include "multiprocess/local_world.h"
#include "sim/values.h"
#include "unit/reduce_oracle.h"

namespace rdmacoll {
namespace {

// The servers serve in their own threads until close(), or until the world has failed.
class ServedWorld {
 public:
  ServedWorld(int workers, int servers, const std::string& settings)
      : workers_(workers),
        world_(workers + servers,
               cat("RDMACOLL_MODE=ps\nRDMACOLL_NUM_SERVERS=", servers, "\n", settings)),
        served_(servers),
        left_(servers) {
    if (testing::Test::HasFatalFailure()) return;
    for (int server = 0; server < servers; ++server) {
      threads_.emplace_back([this, server] {
        do {
          served_[server] = this->server(server).serve(20 * kMillisecond, left_[server]);
        } while (served_[server].is_busy());
      });
    }
  }
  ~ServedWorld() { close(); }

  Session& worker(int rank) { return world_.rank(rank); }
  Session& server(int number) { return world_.rank(workers_ + number); }
  void each(const std::function<void(int rank)>& body) {
    world_.each([&](int rank) {
      if (rank < workers_) body(rank);
    });
  }
  void close(const std::string& cause = "") {
    each([&](int rank) { worker(rank).close(rank == workers_ - 1 ? cause : ""); });
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
    world_.close();
  }
  const Status& served(int number) const { return served_[number]; }  // after close()
  const std::string& left(int number) const { return left_[number]; }

 private:
  const int workers_;
  LocalWorld world_;
  std::vector<Status> served_;
  std::vector<std::string> left_;
  std::vector<std::thread> threads_;
};

double metric_of(Session& session, const std::string& name) {
  const std::string text = session.metrics();
  const std::size_t at = text.find("\"" + name + "\": ");
  EXPECT_NE(at, std::string::npos) << name;
  return std::stod(text.substr(at + name.size() + 4));
}

// The tests' parameters are the workers, the servers and one of these setups.
constexpr const char* kServedSetups[] = {
    "RDMACOLL_TRANSPORT=shm\n",
    "RDMACOLL_TRANSPORT=shm\nRDMACOLL_ONE_COPY=false\nRDMACOLL_SEGMENT_BYTES=8192\n",
    "RDMACOLL_TRANSPORT=tcp\n",
    "RDMACOLL_TRANSPORT=tcp\nRDMACOLL_SEGMENT_BYTES=7000\nRDMACOLL_BUF_SIZE=16M\n",
};

class Served : public testing::TestWithParam<std::tuple<int, int, int>> {
 protected:
  int workers() const { return std::get<0>(GetParam()); }
  int servers() const { return std::get<1>(GetParam()); }
  std::string settings() const {
    return cat("RDMACOLL_LOG=error\n", kServedSetups[std::get<2>(GetParam())]);
  }
};

// In canonical order, every algorithm has the bits of the oracle.
TEST_P(Served, sums_have_the_bits_of_the_canonical_order) {
  ServedWorld world(workers(), servers(), settings() + "RDMACOLL_ORDER=canonical\n");
  if (HasFatalFailure()) return;
  std::mt19937_64 random(7);
  for (const Dtype dtype : {Dtype::float32, Dtype::bfloat16, Dtype::int32}) {
    for (const std::size_t count : {1u, 40u, 20'011u}) {
      std::vector<oracle::Bytes> inputs;
      for (int rank = 0; rank < workers(); ++rank) {
        inputs.push_back(oracle::random_operand(dtype, count, ReduceOp::sum, random));
      }
      const oracle::Bytes expected =
          workers() == 1 ? inputs.front() : oracle::reduce(dtype, ReduceOp::sum, inputs);
      world.each([&](int rank) {
        oracle::Bytes sum = inputs[rank];
        Request request = in_place(Kind::allreduce, dtype, sum);
        request.tensors.front().dims = {static_cast<int64_t>(count)};
        const Status status = run(world.worker(rank), std::move(request));
        ASSERT_TRUE(status.ok()) << status.message();
        ASSERT_TRUE(sum == expected) << name_of(dtype) << " of " << count;
      });
    }
  }
}

TEST_P(Served, every_kind_has_its_results_among_the_workers) {
  ServedWorld world(workers(), servers(), settings());
  if (HasFatalFailure()) return;
  for (const int64_t rows : {5, 400}) {
    const std::vector<SimOperation> kinds = every_kind(workers(), rows, rows == 400);
    world.each([&](int rank) {
      std::vector<SimMemory> memory(kinds.size());
      std::vector<OperationRef> operations;
      for (std::size_t i = 0; i < kinds.size(); ++i) {
        operations.push_back(
            std::make_shared<Operation>(sim_request(kinds[i], rank, i % 2 == 1, memory[i])));
        const Status status = world.worker(rank).driver().submit(operations.back());
        ASSERT_TRUE(status.ok()) << status.message();
      }
      for (std::size_t i = 0; i < kinds.size(); ++i) {
        ASSERT_TRUE(world.worker(rank).driver().wait(*operations[i], 60 * kSecond))
            << world.worker(rank).state();
        ASSERT_TRUE(operations[i]->status().ok()) << operations[i]->status().message();
        EXPECT_EQ(sim_error(kinds[i], workers(), rank, *operations[i]), "")
            << name_of(kinds[i].kind);
      }
    });
  }
}

TEST_P(Served, servers_end_well_when_all_workers_have_left) {
  ServedWorld world(workers(), servers(), settings());
  if (HasFatalFailure()) return;
  world.each([&](int rank) {
    std::vector<float> ones(1000, 1.f);
    ASSERT_TRUE(run(world.worker(rank), in_place(Kind::allreduce, Dtype::float32, ones)).ok());
    ASSERT_EQ(ones.back(), static_cast<float>(workers()));
  });
  world.close("ValueError: nan");
  for (int server = 0; server < servers(); ++server) {
    EXPECT_TRUE(world.served(server).ok()) << world.served(server).message();
    EXPECT_NE(world.left(server).find(cat("\"", workers() - 1, "\": \"ValueError: nan\"")),
              std::string::npos)
        << world.left(server);
  }
}

INSTANTIATE_TEST_SUITE_P(worlds, Served,
                         testing::Values(std::tuple(1, 1, 0), std::tuple(2, 1, 2),
                                         std::tuple(3, 1, 0), std::tuple(3, 2, 1),
                                         std::tuple(4, 2, 2), std::tuple(5, 3, 3),
                                         std::tuple(2, 3, 0), std::tuple(5, 2, 0)),
                         [](const auto& info) {
                           return cat(std::get<0>(info.param), "_workers_", std::get<1>(info.param),
                                      "_servers_", std::get<2>(info.param));
                         });

class ServedPlan : public testing::TestWithParam<const char*> {
 protected:
  static constexpr int kWorkers = 3, kServers = 2;
  std::string settings(const std::string& more = "") const {
    return cat("RDMACOLL_LOG=error\nRDMACOLL_TRANSPORT=", GetParam(), "\n", more);
  }
  static void step(Session& session, int rank, const std::string& name, std::size_t count) {
    std::vector<float> values(count, static_cast<float>(rank + 1));
    const Status status = run(session, in_place(Kind::allreduce, Dtype::float32, values, name));
    ASSERT_TRUE(status.ok()) << status.message();
    ASSERT_EQ(values.front(), 6.f);
    ASSERT_EQ(values.back(), 6.f);
  }
  static void steps(ServedWorld& world, int count) {
    world.each([&](int rank) {
      for (int i = 0; i < count; ++i) {
        step(world.worker(rank), rank, "a", 300);
        step(world.worker(rank), rank, "b", 30'000);
      }
    });
  }
};

// In a plan, the only control messages are the root's. They tell the servers which batch it begins.
TEST_P(ServedPlan, is_followed_by_the_workers_and_costs_the_root_a_word_to_each_server) {
  ServedWorld world(kWorkers, kServers, settings());
  if (HasFatalFailure()) return;
  steps(world, 20);
  std::vector<double> said, made;
  for (int rank = 0; rank < kWorkers + kServers; ++rank) {
    Session& session = rank < kWorkers ? world.worker(rank) : world.server(rank - kWorkers);
    said.push_back(metric_of(session, "control_messages"));
    made.push_back(metric_of(session, "engine_allocations"));
  }
  steps(world, 50);
  for (int rank = 0; rank < kWorkers + kServers; ++rank) {
    Session& session = rank < kWorkers ? world.worker(rank) : world.server(rank - kWorkers);
    const double expected = rank == 0 ? 50 * 2 * kServers : 0;
    EXPECT_EQ(metric_of(session, "control_messages") - said[rank], expected) << rank;
    EXPECT_EQ(metric_of(session, "engine_allocations"), made[rank]) << rank;
    EXPECT_EQ(metric_of(session, "plans"), rank < kWorkers ? 1 : 0) << rank;
  }
}

TEST_P(ServedPlan, is_left_for_what_is_not_in_it_and_comes_back) {
  ServedWorld world(kWorkers, kServers, settings());
  if (HasFatalFailure()) return;
  for (int surprise = 0; surprise < 6; ++surprise) {
    steps(world, 20);
    world.each([&](int rank) {
      step(world.worker(rank), rank, "other", 50);
      if (surprise % 2 == 0) step(world.worker(rank), rank, "b", 30'000);  // out of turn
    });
  }
  EXPECT_GE(metric_of(world.worker(0), "plans_left"), 2);
}

TEST_P(ServedPlan, a_server_that_leaves_is_named_as_one) {
  ServedWorld world(kWorkers, kServers, settings());
  if (HasFatalFailure()) return;
  steps(world, 20);
  world.server(1).close("KeyboardInterrupt");
  world.each([&](int rank) {
    std::vector<float> values(300, 1.f);
    const Status status =
        run(world.worker(rank), in_place(Kind::allreduce, Dtype::float32, values, "a"));
    EXPECT_EQ(status.code(), Code::rank_failed) << status.message();
    EXPECT_EQ(status.detail().rank, JobRank(4));
    EXPECT_NE(status.message().find("server 1 (rank 4, "), std::string::npos) << status.message();
    EXPECT_NE(status.message().find("KeyboardInterrupt"), std::string::npos) << status.message();
  });
}

INSTANTIATE_TEST_SUITE_P(Transports, ServedPlan, testing::Values("shm", "tcp"),
                         [](const auto& info) { return std::string(info.param); });

// A server's memory holds the segments in flight of all workers. It does not grow with the tensors.
TEST(Server, has_memory_for_what_is_in_flight_alone) {
  constexpr int kWorkers = 4;
  ServedWorld world(kWorkers, 1,
                    "RDMACOLL_TRANSPORT=tcp\nRDMACOLL_LOG=error\nRDMACOLL_SEGMENT_BYTES=64K\n");
  if (HasFatalFailure()) return;
  world.each([&](int rank) {
    std::vector<float> values(1 << 20, 1.f);
    ASSERT_TRUE(run(world.worker(rank), in_place(Kind::allreduce, Dtype::float32, values)).ok());
  });
  constexpr std::size_t kSegments = kSegmentsInFlight * kBatchesInFlight;
  constexpr std::size_t kOfEach = (kWorkers + 1) * (64 << 10) + (64 << 10);
  EXPECT_LE(world.server(0).pool()->used(), kSegments * kOfEach);
}

TEST(Server, where_no_worker_is_left_the_start_is_refused) {
  std::unique_ptr<Session> session;
  const std::vector<std::byte> secret(32, std::byte{7});
  const Status status =
      Session::open(0, 2, "test", secret, "RDMACOLL_MODE=ps\nRDMACOLL_NUM_SERVERS=2\n", session);
  EXPECT_EQ(status.code(), Code::invalid);
  EXPECT_NE(status.message().find("RDMACOLL_NUM_SERVERS=2 leaves no worker among 2 ranks: start 3"),
            std::string::npos)
      << status.message();
}

TEST(Server, that_is_colocated_is_every_worker) {
  LocalWorld world(3, "RDMACOLL_MODE=ps\nRDMACOLL_SERVER_PLACEMENT=colocated\n");
  if (HasFatalFailure()) return;
  EXPECT_EQ(world.rank(0).world().workers(), 3);
  world.each([&](int rank) {
    std::vector<float> values(1000, static_cast<float>(rank));
    ASSERT_TRUE(run(world.rank(rank), in_place(Kind::allreduce, Dtype::float32, values)).ok());
    ASSERT_EQ(values.back(), 3.f);
  });
}

}  // namespace
}  // namespace rdmacoll
