// Operands of jobs in all kinds of memory, and all compute backends.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "compute/compute.h"
#include "compute/inline.h"
#include "compute/workers.h"
#include "unit/reduce_oracle.h"

namespace rdmacoll::compute_test {

using oracle::Bytes;

// Far more than any job here takes. Only a lost wake-up or a hang reaches this limit.
inline constexpr std::chrono::seconds kLimit{60};

// Stands for another process. It reads addresses of this process through a call, counts the reads,
// and fails on demand.
class Neighbour final : public RemoteReader {
 public:
  Status read(std::span<const RemotePiece> from, std::size_t skip, std::byte* into,
              std::size_t bytes) const override {
    ++reads;
    std::size_t largest = largest_read.load();
    while (bytes > largest && !largest_read.compare_exchange_weak(largest, bytes)) {
    }
    if (reads > fail_after) {
      return Status(Code::rank_failed, "the neighbour is gone");
    }
    for (const RemotePiece& piece : from) {
      if (skip >= piece.bytes) {
        skip -= piece.bytes;
        continue;
      }
      const std::size_t now = std::min(bytes, piece.bytes - skip);
      std::memcpy(into, reinterpret_cast<const std::byte*>(piece.address) + skip, now);
      into += now;
      bytes -= now;
      skip = 0;
      if (bytes == 0) return {};
    }
    return bytes == 0 ? Status() : Status(Code::failed, "read past the end");
  }

  mutable std::atomic<int> reads{0};
  mutable std::atomic<std::size_t> largest_read{0};
  int fail_after = std::numeric_limits<int>::max();
};

// Cuts at multiples of `unit`, with an empty piece now and then.
inline std::vector<Piece> cut(Bytes& bytes, std::size_t unit, std::mt19937_64& random) {
  std::vector<Piece> pieces;
  for (std::size_t at = 0; at < bytes.size();) {
    const std::size_t left = (bytes.size() - at) / unit;
    const std::size_t most = std::min<std::size_t>(left, 1 + random() % (left + 1));
    const std::size_t length = random() % 8 == 0 ? 0 : most * unit;
    pieces.push_back({bytes.data() + at, length});
    at += length;
  }
  return pieces;
}

enum class Place { local, mapped, unmapped, mixed };

// Operands of one job, and the memory behind them.
struct Case {
  std::vector<Bytes> sources;
  Bytes result;
  std::vector<std::vector<Piece>> local;
  std::vector<std::vector<RemotePiece>> remote;
  std::vector<Operand> operands;
  std::vector<Piece> to;
  ComputeJob job;

  void add(Place place, std::size_t unit, const Neighbour& neighbour, std::mt19937_64& random) {
    Bytes& bytes = sources[local.size()];
    local.push_back(cut(bytes, unit, random));
    remote.emplace_back();
    if (place == Place::local) return;
    for (const Piece& piece : local.back()) {
      const bool is_mapped = place == Place::mapped || (place == Place::mixed && random() % 2 == 0);
      remote.back().push_back(
          {is_mapped ? piece.data : nullptr, reinterpret_cast<uint64_t>(piece.data), piece.bytes});
    }
    local.back().clear();
    readers.push_back(&neighbour);
  }
  void finish(Dtype dtype, ReduceOp op) {
    for (std::size_t i = 0; i < sources.size(); ++i) {
      const bool is_local = remote[i].empty();
      operands.push_back({local[i], remote[i], is_local ? nullptr : readers.front()});
    }
    job = {.dtype = dtype, .op = op, .to = to, .sources = operands};
  }
  std::vector<const RemoteReader*> readers;
};

class Counting final : public ComputeSink {
 public:
  void computed(uint64_t cookie, const Status& status) override {
    cookies.push_back(cookie);
    statuses.push_back(status);
  }
  std::vector<uint64_t> cookies;
  std::vector<Status> statuses;
};

struct Maker {
  const char* name;
  std::function<std::unique_ptr<Compute>(std::function<void()> wake)> make;
};

class ComputeTest : public ::testing::TestWithParam<Maker> {
 protected:
  void SetUp() override {
    compute = make([] {});
  }
  std::unique_ptr<Compute> make(std::function<void()> wake) const {
    return GetParam().make(std::move(wake));
  }

  // Polls until `count` jobs have been reported.
  Counting wait(std::size_t count) {
    Counting sink;
    const auto end = std::chrono::steady_clock::now() + kLimit;
    while (sink.cookies.size() < count && std::chrono::steady_clock::now() < end) {
      if (!compute->poll(sink)) std::this_thread::yield();
    }
    EXPECT_EQ(sink.cookies.size(), count) << "jobs were not reported in time";
    return sink;
  }
  Status run(const ComputeJob& job) {
    RC_RETURN_IF_ERROR(compute->submit(job));
    const Counting sink = wait(1);
    return sink.statuses.empty() ? Status(Code::failed, "nothing reported") : sink.statuses[0];
  }

  std::unique_ptr<Compute> compute;
};

// Returns a backend in which every job goes to the workers, even a small one.
inline std::unique_ptr<Compute> workers_of(int workers, std::function<void()> wake) {
  return std::make_unique<WorkerCompute>(workers, std::move(wake),
                                         WorkerLimits{.at_once = 0, .alone = 0});
}

// worker_makers(): the backends whose jobs end on another thread. all_makers(): all backends.
inline std::vector<Maker> worker_makers() {
  return {{"one_worker", [](auto wake) { return workers_of(1, std::move(wake)); }},
          {"three_workers", [](auto wake) { return workers_of(3, std::move(wake)); }}};
}
inline std::vector<Maker> all_makers() {
  std::vector<Maker> makers = worker_makers();
  makers.push_back({"inline", [](auto) { return std::make_unique<InlineCompute>(); }});
  makers.push_back({"three_workers_and_small_jobs_inline",
                    [](auto wake) { return std::make_unique<WorkerCompute>(3, std::move(wake)); }});
  return makers;
}
inline std::string name_of_maker(const ::testing::TestParamInfo<Maker>& info) {
  return info.param.name;
}

}  // namespace rdmacoll::compute_test
