// Many jobs at once: the threads that report them, and the threads that are woken.
#include "compute/workers.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <set>
#include <span>
#include <thread>
#include <vector>

#include "compute/inline.h"
#include "unit/compute_fixture.h"

namespace rdmacoll {
namespace {

using namespace compute_test;  // NOLINT: the fixture, written for these files

class InFlightTest : public ComputeTest {};

INSTANTIATE_TEST_SUITE_P(Who, InFlightTest, ::testing::ValuesIn(all_makers()), name_of_maker);

// Compute backends whose jobs end on another thread.
class WorkersTest : public ComputeTest {};

INSTANTIATE_TEST_SUITE_P(Who, WorkersTest, ::testing::ValuesIn(worker_makers()), name_of_maker);

TEST_P(InFlightTest, a_sink_may_submit_the_next_job) {
  struct Chain final : ComputeSink {
    Chain(Compute& compute, const ComputeJob& job) : compute(compute), job(job) {}
    void computed(uint64_t, const Status& status) override {
      EXPECT_TRUE(status.ok());
      if (++done == 10) return;
      EXPECT_TRUE(compute.submit(job).ok());
    }
    Compute& compute;
    ComputeJob job;
    int done = 0;
  };
  std::vector<float> value(100, 1.0F);
  const Piece piece{reinterpret_cast<std::byte*>(value.data()), 400};
  const std::vector<Operand> operands(2, Operand{{&piece, 1}, {}, nullptr});
  Chain chain(*compute, {.dtype = Dtype::float32, .to = {&piece, 1}, .sources = operands});
  ASSERT_TRUE(compute->submit(chain.job).ok());
  const auto end = std::chrono::steady_clock::now() + kLimit;
  while (chain.done < 10 && std::chrono::steady_clock::now() < end) compute->poll(chain);
  EXPECT_EQ(value, std::vector<float>(100, 1024.0F));
}

TEST_P(InFlightTest, many_jobs_in_flight_are_each_reported_once) {
  constexpr std::size_t kJobs = 2000;
  std::vector<std::vector<float>> results(kJobs, std::vector<float>(500));
  std::vector<float> ones(500, 1.0F);
  std::vector<std::array<Operand, 2>> operands(kJobs);
  std::vector<std::array<Piece, 2>> pieces(kJobs);
  Counting sink;
  int refusals = 0;
  for (std::size_t i = 0; i < kJobs; ++i) {
    results[i].assign(500, static_cast<float>(i));
    pieces[i] = {Piece{reinterpret_cast<std::byte*>(results[i].data()), 2000},
                 Piece{reinterpret_cast<std::byte*>(ones.data()), 2000}};
    operands[i] = {Operand{{&pieces[i][0], 1}, {}, nullptr},
                   Operand{{&pieces[i][1], 1}, {}, nullptr}};
    const ComputeJob job{
        .dtype = Dtype::float32, .to = {&pieces[i][0], 1}, .sources = operands[i], .cookie = i};
    while (compute->submit(job).is_busy()) {
      ++refusals;
      compute->poll(sink);
    }
  }
  EXPECT_GT(refusals, 0);  // more jobs than a queue holds
  const Counting rest = wait(kJobs - sink.cookies.size());
  std::vector<uint64_t> all = sink.cookies;
  all.insert(all.end(), rest.cookies.begin(), rest.cookies.end());
  std::sort(all.begin(), all.end());
  for (std::size_t i = 0; i < kJobs; ++i) {
    ASSERT_EQ(all[i], i);
    ASSERT_EQ(results[i], std::vector<float>(500, static_cast<float>(i) + 1.0F));
  }
}

TEST_P(InFlightTest, does_not_arm_while_completions_wait) {
  std::vector<float> value(100, 1.0F);
  const Piece piece{reinterpret_cast<std::byte*>(value.data()), 400};
  const std::vector<Operand> operands(2, Operand{{&piece, 1}, {}, nullptr});
  EXPECT_TRUE(compute->arm());
  ASSERT_TRUE(
      compute->submit({.dtype = Dtype::float32, .to = {&piece, 1}, .sources = operands}).ok());
  const auto end = std::chrono::steady_clock::now() + kLimit;
  while (compute->arm() && std::chrono::steady_clock::now() < end) std::this_thread::yield();
  EXPECT_FALSE(compute->arm());
  wait(1);
  EXPECT_TRUE(compute->arm());
}

// Memory of a neighbour. A reader waits until the gate is open.
class Gate final : public RemoteReader {
 public:
  Status read(std::span<const RemotePiece>, std::size_t, std::byte* into,
              std::size_t bytes) const override {
    std::memset(into, 7, bytes);
    is_entered = true;
    while (!is_open) std::this_thread::yield();
    return {};
  }
  mutable std::atomic<bool> is_entered{false};
  std::atomic<bool> is_open{false};
};

// The classic bug is the lost wake-up. The test sleeps whenever arm() allows it, thousands of
// times. The job ends before, during and after arm().
TEST_P(WorkersTest, wakes_a_sleeper_after_arm) {
  std::mutex mutex;
  std::condition_variable bell;
  int rings = 0;
  compute = make([&] {
    const std::lock_guard lock(mutex);
    ++rings;
    bell.notify_one();
  });
  std::vector<std::byte> value(1000);
  const Piece to{value.data(), value.size()};
  const RemotePiece from{nullptr, 0, value.size()};
  Gate gate;
  const Operand operand{{}, {&from, 1}, &gate};
  int sleeps = 0;
  for (int turn = 0; turn < 3000; ++turn) {
    gate.is_entered = gate.is_open = false;
    ASSERT_TRUE(compute->submit({.to = {&to, 1}, .sources = {&operand, 1}}).ok());
    while (!gate.is_entered) std::this_thread::yield();  // a worker reads, since no thread polls
    if (turn % 2 == 0) gate.is_open = true;
    const bool may_sleep = compute->arm();
    EXPECT_TRUE(may_sleep || turn % 2 == 0);
    gate.is_open = true;
    if (may_sleep) {
      std::unique_lock lock(mutex);
      ASSERT_TRUE(bell.wait_for(lock, kLimit, [&] { return rings > 0; })) << "turn " << turn;
      --rings;
      ++sleeps;
    }
    Counting sink;
    while (sink.cookies.empty()) compute->poll(sink);
    EXPECT_TRUE(sink.statuses[0].ok());
  }
  EXPECT_GE(sleeps, 1500);
  EXPECT_EQ(rings, 0);  // one wake-up for one arm
  EXPECT_EQ(value, std::vector<std::byte>(1000, std::byte{7}));
}

TEST_P(InFlightTest, ends_while_jobs_are_in_flight) {
  std::vector<float> value(std::size_t{1} << 20, 1.0F);
  const Piece piece{reinterpret_cast<std::byte*>(value.data()), value.size() * 4};
  const std::vector<Operand> operands(2, Operand{{&piece, 1}, {}, nullptr});
  for (int i = 0; i < 50; ++i) {
    ASSERT_TRUE(
        compute->submit({.dtype = Dtype::float32, .to = {&piece, 1}, .sources = operands}).ok());
  }
  compute.reset();
}

TEST_P(InFlightTest, tasks_are_run_by_others_beside_jobs_and_none_is_lost_in_the_end) {
  std::vector<float> value(std::size_t{1} << 20, 1.0F);
  const Piece piece{reinterpret_cast<std::byte*>(value.data()), value.size() * 4};
  const std::vector<Operand> operands(2, Operand{{&piece, 1}, {}, nullptr});
  std::atomic<int> ran = 0, here = 0;
  int handed_over = 0;
  for (int i = 0; i < 50; ++i) {
    ASSERT_TRUE(
        compute->submit({.dtype = Dtype::float32, .to = {&piece, 1}, .sources = operands}).ok());
    handed_over += compute->hand_over([&ran, &here, mine = std::this_thread::get_id()] {
      here += std::this_thread::get_id() == mine ? 1 : 0;
      ++ran;
    });
  }
  compute.reset();
  EXPECT_EQ(ran, handed_over);
  EXPECT_EQ(here, 0);
}

TEST(Workers, wait_for_tasks_and_tell_sleepers_of_their_end) {
  std::atomic<int> wakes = 0, ran = 0;
  WorkerCompute workers(2, [&wakes] { ++wakes; });
  for (int turn = 0; turn < 200; ++turn) {
    const bool armed = workers.arm() || workers.arm();  // the first call tells of the last end
    EXPECT_TRUE(armed);
    for (int i = 0; i < 5; ++i) ASSERT_TRUE(workers.hand_over([&ran] { ++ran; }));
    workers.finish_tasks();
    EXPECT_EQ(ran, 5 * (turn + 1));
    EXPECT_FALSE(workers.arm());
  }
  std::atomic<bool> has_returned = false;
  ASSERT_TRUE(workers.hand_over([&] {
    workers.finish_tasks();  // not for itself
    has_returned = true;
  }));
  workers.finish_tasks();
  EXPECT_TRUE(has_returned);
  EXPECT_GT(wakes, 0);
}

// Says which threads have read.
class Witness final : public RemoteReader {
 public:
  Status read(std::span<const RemotePiece>, std::size_t, std::byte* into,
              std::size_t bytes) const override {
    std::memset(into, 0, bytes);
    const std::lock_guard lock(mutex_);
    threads_.insert(std::this_thread::get_id());
    return {};
  }
  bool has_seen(std::thread::id thread) const {
    const std::lock_guard lock(mutex_);
    return threads_.count(thread) > 0;
  }
  std::size_t threads() const {
    const std::lock_guard lock(mutex_);
    return threads_.size();
  }

 private:
  mutable std::mutex mutex_;
  mutable std::set<std::thread::id> threads_;
};

struct CopyFromAfar {
  explicit CopyFromAfar(std::size_t bytes)
      : into(bytes, std::byte{1}), to{into.data(), bytes}, from{nullptr, 0, bytes} {
    job.to = {&to, 1};
    job.sources = {&operand, 1};
  }
  std::vector<std::byte> into;
  Piece to;
  RemotePiece from;
  Witness witness;
  Operand operand{{}, {&from, 1}, &witness};
  ComputeJob job;
};

// Returns a worker that already waits, so it takes a job only when it is woken.
std::unique_ptr<WorkerCompute> sleeping_worker(std::size_t alone) {
  auto worker = std::make_unique<WorkerCompute>(
      1, [] {}, WorkerLimits{0, alone});
  EXPECT_TRUE(worker->hand_over([] {}));
  worker->finish_tasks();
  EXPECT_FALSE(worker->arm());  // arm() reports the end of the task once
  return worker;
}

TEST(Workers, leave_work_that_does_not_pile_up_to_the_polling_thread) {
  constexpr std::size_t kBytes = 300'000;
  CopyFromAfar copy(kBytes);
  const auto worker = sleeping_worker(2 * kBytes);
  for (int turn = 0; turn < 100; ++turn) {
    ASSERT_TRUE(worker->submit(copy.job).ok());
    EXPECT_FALSE(worker->arm());  // the polling thread has to run the job
    Counting sink;
    int polls = 0;
    for (; sink.cookies.empty(); ++polls) ASSERT_TRUE(worker->poll(sink));
    EXPECT_GT(polls, 1);  // the engine polls transfers between them
    EXPECT_TRUE(worker->arm());
  }
  EXPECT_EQ(copy.witness.threads(), 1U);
  EXPECT_TRUE(copy.witness.has_seen(std::this_thread::get_id()));
  EXPECT_EQ(copy.into, std::vector<std::byte>(kBytes));
}

TEST(Workers, sum_many_sources_in_smaller_grains) {
  constexpr std::size_t kBytes = 64 << 10, kSources = 15;
  CopyFromAfar copy(kBytes);
  const std::vector<Operand> sources(kSources, copy.operand);
  copy.job.sources = sources;
  const auto worker = sleeping_worker(kBytes * (kSources + 1));
  ASSERT_TRUE(worker->submit(copy.job).ok());
  Counting sink;
  int polls = 0;
  for (; sink.cookies.empty(); ++polls) ASSERT_TRUE(worker->poll(sink));
  EXPECT_EQ(polls, 6);  // 12 KiB each
}

TEST(Workers, report_what_is_dropped_and_do_not_do_it) {
  constexpr std::size_t kBytes = 1 << 20;
  CopyFromAfar copy(kBytes);
  const auto worker = sleeping_worker(5 * kBytes);
  ASSERT_TRUE(worker->submit(copy.job).ok());
  Counting sink;
  ASSERT_TRUE(worker->poll(sink));  // begins it
  ASSERT_TRUE(worker->submit(copy.job).ok());
  worker->drop_waiting();
  EXPECT_FALSE(worker->arm());
  EXPECT_TRUE(worker->poll(sink));
  ASSERT_EQ(sink.statuses.size(), 2U);
  for (const Status& status : sink.statuses) EXPECT_EQ(status.code(), Code::failed);
  EXPECT_LT(std::count(copy.into.begin(), copy.into.end(), std::byte{0}), 100'000);
  EXPECT_TRUE(worker->arm());
  ASSERT_TRUE(worker->submit(copy.job).ok());  // and it goes on
  while (sink.cookies.size() < 3) ASSERT_TRUE(worker->poll(sink));
  EXPECT_TRUE(sink.statuses.back().ok());
}

TEST(Workers, share_work_that_piles_up_with_the_polling_thread) {
  constexpr std::size_t kBytes = 3'000'000;
  CopyFromAfar copy(kBytes);
  WorkerCompute workers(2, [] {}, {.at_once = 0, .alone = 2 * kBytes - 1});
  const auto end = std::chrono::steady_clock::now() + kLimit;
  while (copy.witness.threads() < 3 && std::chrono::steady_clock::now() < end) {
    ASSERT_TRUE(workers.submit(copy.job).ok());
    Counting sink;
    while (sink.cookies.empty()) workers.poll(sink);
  }
  EXPECT_EQ(copy.witness.threads(), 3U);
  EXPECT_TRUE(copy.witness.has_seen(std::this_thread::get_id()));
}

TEST(Workers, that_there_are_take_tasks) {
  std::atomic<bool> ran = false;
  WorkerCompute workers(1, [] {});
  EXPECT_EQ(workers.workers(), 1);
  ASSERT_TRUE(workers.hand_over([&ran] { ran = true; }));
  const auto end = std::chrono::steady_clock::now() + kLimit;
  while (!ran && std::chrono::steady_clock::now() < end) std::this_thread::yield();
  EXPECT_TRUE(ran);
  InlineCompute none;
  EXPECT_FALSE(none.hand_over([] { FAIL(); }));
}

}  // namespace
}  // namespace rdmacoll
