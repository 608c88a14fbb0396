// Tests how callers and the engine thread share the engine. No thread may wait for a thread that
// has given the engine up.
#include <gtest/gtest.h>
#include <pthread.h>

#include <array>
#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "multiprocess/local_world.h"

namespace rdmacoll {
namespace {

using std::chrono::milliseconds;

bool ends_within(const Operation& operation, milliseconds limit) {
  const auto end = std::chrono::steady_clock::now() + limit;
  while (!operation.done() && std::chrono::steady_clock::now() < end) {
    std::this_thread::sleep_for(milliseconds(1));
  }
  return operation.done();
}

// Without the engine thread, the polling rank would be silent. Its peer would call it dead after 1
// s.
TEST(Callers, that_only_ask_do_not_keep_the_engine_from_going_on) {
  LocalWorld world(2, "RDMACOLL_PEER_TIMEOUT_S=1\n");
  if (HasFatalFailure()) return;
  world.each([&](int rank) {
    Driver& driver = world.rank(rank).driver();
    for (int turn = 0; turn < 3; ++turn) {
      std::vector<float> values(10, 1.f), others(10, 1.f);
      const auto polled = std::make_shared<Operation>(
          in_place(Kind::allreduce, Dtype::float32, values, cat("polled", turn)));
      const auto other = std::make_shared<Operation>(
          in_place(Kind::allreduce, Dtype::float32, others, cat("other", turn)));
      if (rank == 1) std::this_thread::sleep_for(milliseconds(700));
      ASSERT_TRUE(driver.submit(polled).ok());
      ASSERT_TRUE(driver.submit(other).ok());
      const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(10);
      while (!driver.wait(*polled, 0) && std::chrono::steady_clock::now() < end) {
        std::this_thread::sleep_for(std::chrono::microseconds(200));
      }
      ASSERT_TRUE(polled->done() && polled->status().ok()) << world.rank(rank).state();
      ASSERT_TRUE(ends_within(*other, milliseconds(10'000)));
      EXPECT_TRUE(other->status().ok()) << other->status().message();
    }
  });
}

TEST(Callers, that_have_just_left_do_not_delay_what_is_submitted_without_waiting) {
  LocalWorld world(3, "");
  if (HasFatalFailure()) return;
  world.each([&](int rank) {
    for (int turn = 0; turn < 200; ++turn) {
      std::vector<float> values(10, 1.f), later(10, 1.f);
      const Request blocking = in_place(Kind::allreduce, Dtype::float32, values, "blocking");
      ASSERT_TRUE(run(world.rank(rank), blocking).ok());
      const auto operation = std::make_shared<Operation>(
          in_place(Kind::allreduce, Dtype::float32, later, "not awaited"));
      ASSERT_TRUE(world.rank(rank).driver().submit(operation).ok());
      ASSERT_TRUE(ends_within(*operation, milliseconds(10'000))) << "turn " << turn;
      ASSERT_EQ(later.front(), 3.f);
    }
  });
}

TEST(Callers, who_asks_for_metrics_meanwhile_gets_them) {
  LocalWorld world(2, "");
  if (HasFatalFailure()) return;
  std::atomic<bool> ended = false;
  std::thread asker([&] {
    while (!ended) {
      EXPECT_NE(world.rank(0).metrics().find("\"batches\""), std::string::npos);
    }
  });
  world.each([&](int rank) {
    std::vector<float> values(1 << 16, 1.f);
    for (int turn = 0; turn < 300; ++turn) {
      ASSERT_TRUE(run(world.rank(rank), in_place(Kind::allreduce, Dtype::float32, values)).ok());
    }
  });
  ended = true;
  asker.join();
}

TEST(Callers, that_wait_do_not_overtake_what_they_have_submitted_before) {
  LocalWorld world(1, "");
  if (HasFatalFailure()) return;
  std::vector<float> values(10, 1.f);
  std::vector<double> others(10, 1.);
  const auto first =
      std::make_shared<Operation>(in_place(Kind::allreduce, Dtype::float32, values, "first"));
  const auto second =
      std::make_shared<Operation>(in_place(Kind::allreduce, Dtype::float64, others, "second"));
  Driver& driver = world.rank(0).driver();
  driver.inspect([&](Engine& engine) {
    EXPECT_TRUE(engine.submit(first).ok());
    const auto again =
        std::make_shared<Operation>(in_place(Kind::allreduce, Dtype::float64, others, "first"));
    EXPECT_EQ(engine.take(again).code(), Code::duplicate);
    EXPECT_TRUE(engine.has_submissions()) << "who is refused takes nothing away from others";
    EXPECT_TRUE(engine.take(second).ok());
  });
  EXPECT_TRUE(driver.wait(*second, 10 * kSecond));
  EXPECT_TRUE(driver.wait(*first, 10 * kSecond));
  EXPECT_LT(first->state.sequence, second->state.sequence);
}

// ---- callers that drive and do not wait ----

// The facts that a request's `done` recorded. It outlives the submitting thread.
struct Seen {
  std::atomic<int> calls = 0;
  std::atomic<std::thread::id> thread;

  OperationRef sum_of(std::vector<float>& values, const std::string& name) {
    Request request = in_place(Kind::allreduce, Dtype::float32, values, name);
    request.done = [this](const Status&) {
      thread = std::this_thread::get_id();
      ++calls;
    };
    return std::make_shared<Operation>(std::move(request));
  }
};

TEST(Callers, that_drive_end_what_needs_nobody_else) {
  LocalWorld world(1, "");
  if (HasFatalFailure()) return;
  int driven = 0;
  constexpr int kTurns = 200;
  for (int turn = 0; turn < kTurns; ++turn) {
    std::vector<float> values(10, 1.f);
    Seen seen;
    const OperationRef operation = seen.sum_of(values, "");
    ASSERT_TRUE(world.rank(0).driver().submit_and_drive(operation).ok());
    ASSERT_TRUE(ends_within(*operation, milliseconds(10'000)));
    EXPECT_EQ(seen.calls, 1);
    driven += seen.thread.load() == std::this_thread::get_id() ? 1 : 0;
  }
  // The engine thread checks for work now and then, so it may complete some of them.
  EXPECT_GT(driven, kTurns / 2);
}

TEST(Callers, that_drive_come_back_though_a_peer_stays_away) {
  LocalWorld world(2, "");
  if (HasFatalFailure()) return;
  std::atomic<bool> has_returned = false;
  world.each([&](int rank) {
    std::vector<float> values(10, 1.f);
    Seen seen;
    const OperationRef operation = seen.sum_of(values, "late");
    const auto end = std::chrono::steady_clock::now() + milliseconds(10'000);
    while (rank == 1 && !has_returned && std::chrono::steady_clock::now() < end) {
      std::this_thread::sleep_for(milliseconds(1));
    }
    EXPECT_TRUE(rank == 0 || has_returned);
    ASSERT_TRUE(world.rank(rank).driver().submit_and_drive(operation).ok());
    if (rank == 0) {
      EXPECT_FALSE(operation->done());
      has_returned = true;
    }
    // On rank 0 the engine thread completes it, since no caller waits there.
    ASSERT_TRUE(ends_within(*operation, milliseconds(10'000)));
    EXPECT_EQ(seen.calls, 1);
    EXPECT_EQ(values.front(), 2.f);
  });
}

TEST(Callers, that_drive_in_another_order_on_each_rank_do_not_keep_each_other) {
  LocalWorld world(3, "");
  if (HasFatalFailure()) return;
  world.each([&](int rank) {
    for (int turn = 0; turn < 50; ++turn) {
      constexpr int kOperations = 5;
      std::vector<std::vector<float>> values(kOperations, std::vector<float>(10, 1.f));
      std::vector<Seen> seen(kOperations);
      std::vector<OperationRef> operations(kOperations);
      for (int i = 0; i < kOperations; ++i) {
        const int which = (i * (rank + 1) + turn) % kOperations;
        operations[which] = seen[which].sum_of(values[which], cat("operation ", which));
        ASSERT_TRUE(world.rank(rank).driver().submit_and_drive(operations[which]).ok());
      }
      for (int i = 0; i < kOperations; ++i) {
        ASSERT_TRUE(ends_within(*operations[i], milliseconds(10'000))) << "turn " << turn;
        EXPECT_EQ(seen[i].calls, 1);
        EXPECT_EQ(values[i].front(), 3.f);
      }
    }
  });
}

// ---- memory ----

TEST(Pool, of_the_smallest_size_is_enough_for_any_number_of_large_operations) {
  for (const AlgorithmRow& row : algorithm_table()) {
    if (row.result != AlgorithmRow::Result::sum || row.by_servers) continue;
    LocalWorld world(5, cat("RDMACOLL_BUF_SIZE=16M\nRDMACOLL_ONE_COPY=false\n",
                            "RDMACOLL_ALLREDUCE_ALGORITHM=", row.name, "\n"));
    if (HasFatalFailure()) return;
    world.each([&](int rank) {
      std::vector<std::byte*> kept;  // this caller borrows all memory that it can get
      while (std::byte* memory = world.rank(rank).pool()->lend(1 << 20)) kept.push_back(memory);
      std::vector<std::vector<float>> values(6, std::vector<float>(1 << 20, 1.f));
      std::vector<OperationRef> operations;
      for (std::size_t i = 0; i < values.size(); ++i) {
        operations.push_back(std::make_shared<Operation>(
            in_place(Kind::allreduce, Dtype::float32, values[i], cat("large", i))));
        ASSERT_TRUE(world.rank(rank).driver().submit(operations.back()).ok());
      }
      for (const OperationRef& operation : operations) {
        ASSERT_TRUE(world.rank(rank).driver().wait(*operation, 60 * kSecond));
        ASSERT_TRUE(operation->status().ok()) << operation->status().message();
      }
      EXPECT_EQ(values.back().back(), 5.f);
      for (std::byte* memory : kept) world.rank(rank).pool()->free(memory);
    });
  }
}

// ---- messages ----

TEST(Limits, a_group_too_large_to_describe_is_refused_with_a_cure) {
  LocalWorld world(1, "");
  if (HasFatalFailure()) return;
  std::vector<float> values(1, 1.f);
  Request request = in_place(Kind::allreduce, Dtype::float32, values, "group");
  request.tensors.resize(100'000, request.tensors.front());
  const Status status = run(world.rank(0), std::move(request));
  EXPECT_EQ(status.code(), Code::invalid);
  EXPECT_NE(status.message().find("Split it"), std::string::npos) << status.message();
}

TEST(Limits, a_cause_of_any_length_reaches_the_others_shortened) {
  LocalWorld world(3, "RDMACOLL_LOG=error\n");
  if (HasFatalFailure()) return;
  world.each([&](int rank) {
    std::vector<float> values(4, 1.f);
    if (rank == 1) {
      world.rank(rank).close("ValueError: " + std::string(3'000'000, 'x'));
      return;
    }
    const Status status = run(world.rank(rank), in_place(Kind::allreduce, Dtype::float32, values));
    EXPECT_EQ(status.detail().rank, JobRank(1));
    EXPECT_LT(status.message().size(), 3000u);
    EXPECT_NE(status.message().find("ValueError: xxx"), std::string::npos);
  });
}

TEST(Limits, many_long_descriptors_at_once_are_split_into_messages) {
  LocalWorld world(2, "");
  if (HasFatalFailure()) return;
  world.each([&](int rank) {
    std::vector<float> values(1, 1.f);
    std::vector<OperationRef> operations;
    for (int i = 0; i < 12; ++i) {
      Request request = in_place(Kind::broadcast, Dtype::float32, values, cat("group", i));
      request.tensors.resize(30'000, request.tensors.front());  // 270 kB of shapes each
      operations.push_back(std::make_shared<Operation>(std::move(request)));
      ASSERT_TRUE(world.rank(rank).driver().submit(operations.back()).ok());
    }
    for (const OperationRef& operation : operations) {
      ASSERT_TRUE(world.rank(rank).driver().wait(*operation, 60 * kSecond));
      ASSERT_TRUE(operation->status().ok()) << operation->status().message();
    }
  });
}

// TensorFlow's done() schedules the waiting ops. If there are compute workers, a worker calls it
// while the holder of the baton goes on. A caller that drives for its own sake calls it itself.
TEST(Callbacks, are_called_by_workers_or_by_who_drives_for_himself) {
  for (const int workers : {0, 2}) {
    LocalWorld world(2, cat("RDMACOLL_COMPUTE_WORKERS=", workers, "\n"));
    if (HasFatalFailure()) return;
    world.each([&](int rank) {
      for (int turn = 0; turn < 50; ++turn) {
        std::vector<float> values(10, 1.f);
        std::atomic<bool> is_called = false;
        std::string name;
        std::thread::id caller;
        Request request = in_place(Kind::allreduce, Dtype::float32, values, cat("called", turn));
        request.done = [&](const Status& status) {
          EXPECT_TRUE(status.ok()) << status.message();
          std::array<char, 16> own_name{};
          ::pthread_getname_np(::pthread_self(), own_name.data(), own_name.size());
          name = own_name.data();
          caller = std::this_thread::get_id();
          is_called = true;
        };
        const auto operation = std::make_shared<Operation>(std::move(request));
        const bool drives = turn % 2 == 1;
        Driver& driver = world.rank(rank).driver();
        ASSERT_TRUE(drives ? driver.submit_and_drive(operation).ok()
                           : driver.submit(operation).ok());
        ASSERT_TRUE(ends_within(*operation, milliseconds(10'000))) << world.rank(rank).state();
        ASSERT_TRUE(is_called);
        EXPECT_EQ(values[0], 2.f);
        const bool is_workers = name.starts_with("rdmacoll-w");
        // A driving caller may stop after a while. A worker then calls the callback.
        EXPECT_TRUE(is_workers == (workers > 0) || (drives && caller == std::this_thread::get_id()))
            << name;
        if (!drives) {
          EXPECT_NE(caller, std::this_thread::get_id());
        }
      }
    });
  }
}

// The callback takes longer than its waiter spins. The waiter sleeps, and the callback's end wakes
// it.
TEST(Callbacks, wake_who_waits_on_the_handle_as_well) {
  LocalWorld world(1, "RDMACOLL_COMPUTE_WORKERS=1\nRDMACOLL_SPIN_US=10\n");
  if (HasFatalFailure()) return;
  for (int turn = 0; turn < 20; ++turn) {
    std::vector<float> values(10, 1.f);
    Request request = in_place(Kind::allreduce, Dtype::float32, values, cat("slow", turn));
    request.done = [](const Status&) { std::this_thread::sleep_for(milliseconds(5)); };
    const auto operation = std::make_shared<Operation>(std::move(request));
    Driver& driver = world.rank(0).driver();
    ASSERT_TRUE(driver.submit(operation).ok());
    const auto begin = std::chrono::steady_clock::now();
    ASSERT_TRUE(driver.wait(*operation, 60 * kSecond));
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(5));
  }
}

// A world of one rank. The operation ends in the engine turn in which it is submitted.
TEST(Callbacks, of_callers_that_drive_are_their_own) {
  LocalWorld world(1, "RDMACOLL_COMPUTE_WORKERS=1\n");
  if (HasFatalFailure()) return;
  int own = 0;
  constexpr int kTurns = 50;
  for (int turn = 0; turn < kTurns; ++turn) {
    std::vector<float> values(10, 1.f);
    std::thread::id caller;
    Request request = in_place(Kind::allreduce, Dtype::float32, values, cat("driven", turn));
    request.done = [&caller](const Status&) { caller = std::this_thread::get_id(); };
    const auto operation = std::make_shared<Operation>(std::move(request));
    ASSERT_TRUE(world.rank(0).driver().submit_and_drive(operation).ok());
    ASSERT_TRUE(ends_within(*operation, milliseconds(10'000)));
    own += caller == std::this_thread::get_id() ? 1 : 0;
  }
  EXPECT_GT(own, kTurns / 2);  // in the other turns the engine thread was faster
}

TEST(Callbacks, of_what_never_ends_are_called_when_the_world_does) {
  std::atomic<int> called = 0;
  std::vector<float> values(10, 1.f);
  LocalWorld world(2, "RDMACOLL_COMPUTE_WORKERS=1\nRDMACOLL_LOG=error\n");
  if (HasFatalFailure()) return;
  for (int i = 0; i < 20; ++i) {
    Request request = in_place(Kind::allreduce, Dtype::float32, values, cat("lonely", i));
    request.done = [&called](const Status& status) {
      EXPECT_FALSE(status.ok());
      ++called;
    };
    const auto operation = std::make_shared<Operation>(std::move(request));
    ASSERT_TRUE(world.rank(0).driver().submit(operation).ok());
  }
  world.close();
  EXPECT_EQ(called, 20);
}

}  // namespace
}  // namespace rdmacoll
