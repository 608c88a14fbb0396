// Work of a simulated rank's GPUs that is done late, in the order of its streams: copies of the
// engine, and what the program itself has enqueued. It goes on whether the rank runs or not.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "compute/compute.h"
#include "memory/stream_order.h"
#include "sim/gpu.h"
#include "transport/sim/sim_network.h"

namespace rdmacoll {

// Whether recorded work is done.
using SimMark = std::shared_ptr<const bool>;

class SimGpuEnd final : public GpuEnd {
 public:
  explicit SimGpuEnd(std::vector<SimMark> marks) : marks_(std::move(marks)) {}
  Status passed(bool& has_passed) const override;
  const std::vector<SimMark>& marks() const { return marks_; }

 private:
  const std::vector<SimMark> marks_;
};

// A stream of the program.
class SimStream {
 public:
  explicit SimStream(const Clock& clock) : clock_(clock) {}

  // Enqueues work, which takes until `due` at least. Returns the mark behind it.
  SimMark add(Nanoseconds due, std::function<void()> work);
  // Later work waits for these.
  void wait_for(const std::vector<SimMark>& marks);
  // Does the work whose time has come. `is_over`: the time of all work has.
  void advance(bool is_over = false);
  bool is_idle() const { return items_.empty(); }

 private:
  struct Item {
    std::vector<SimMark> after;
    Nanoseconds due = 0;
    std::function<void()> work;
    std::shared_ptr<bool> mark;
  };
  const Clock& clock_;
  std::deque<Item> items_;
};

// An operation's place in a stream of the program.
class SimPlaceInStream final : public StreamOrder {
 public:
  SimPlaceInStream(SimStream& stream, SimMark mark) : stream_(stream), mark_(std::move(mark)) {}
  Status reached(bool& is_reached) override;
  Status follow(const GpuEnd& end) override;

 private:
  SimStream& stream_;
  const SimMark mark_;
};

// The engine's streams of one rank: one for each GPU and direction.
class SimLanes {
 public:
  // `delay_max`: some pieces of work take up to this much longer. `wake`: wakes the sleeping
  // engine. `moved`: called after each piece of work.
  SimLanes(SimNetwork& network, int rank, const SimGpus& gpus, Nanoseconds delay_max,
           std::function<void()> wake, std::function<void()> moved);
  ~SimLanes() { *is_alive_ = false; }
  SimLanes(const SimLanes&) = delete;
  SimLanes& operator=(const SimLanes&) = delete;

  void enqueue(const ComputeJob& job);
  // Reports the jobs that are done. A rank that polls and polls at one time waits for a GPU, which
  // then goes on.
  bool poll(ComputeSink& sink);
  bool has_done() const { return !done_.empty(); }
  // Null: no work is left.
  std::shared_ptr<const GpuEnd> end() const;

 private:
  struct Job {
    ComputeJob job;
    // As they are now. Those of the job may have other contents later.
    std::vector<Piece> to;
    std::vector<Operand> operands;
    std::vector<std::vector<Piece>> pieces;
    std::vector<std::vector<RemotePiece>> remote;
    Nanoseconds due = 0;
    std::shared_ptr<bool> mark = std::make_shared<bool>(false);
  };
  using Lane = std::deque<Job>;

  void run_due();
  void run_next();
  void run(Lane& lane);

  SimNetwork& network_;
  const int rank_;
  const SimGpus& gpus_;
  const Nanoseconds delay_max_;
  const std::function<void()> wake_, moved_;
  std::map<std::pair<Gpu, bool>, Lane> lanes_;  // by GPU, and whether it copies to the host
  std::vector<std::pair<uint64_t, Status>> done_;
  Nanoseconds polled_at_ = 0;
  int polls_ = 0;  // at that time
  const std::shared_ptr<bool> is_alive_ = std::make_shared<bool>(true);
};

}  // namespace rdmacoll
