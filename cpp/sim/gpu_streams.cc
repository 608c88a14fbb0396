#include "sim/gpu_streams.h"

#include <algorithm>

#include "base/small_range.h"
#include "compute/inline.h"
#include "compute/job.h"

namespace rdmacoll {
namespace {

// A copy takes up to this long behind those before it.
constexpr uint64_t kCopyMax = 300 * kMicrosecond;
constexpr double kDelayed = 0.1;
// So many polls at one time are those of a rank that waits in a loop.
constexpr int kPollsMax = 100;

struct Outcome final : ComputeSink {
  Status status;
  void computed(uint64_t, const Status& ended) override { status = ended; }
};

bool is_on_gpu(const Piece& piece) { return piece.gpu != kHost; }

}  // namespace

Status SimGpuEnd::passed(bool& has_passed) const {
  has_passed = are_all_of(marks_, [](const SimMark& mark) { return *mark; });
  return {};
}

SimMark SimStream::add(Nanoseconds due, std::function<void()> work) {
  items_.push_back({{}, due, std::move(work), std::make_shared<bool>(false)});
  return items_.back().mark;
}

void SimStream::wait_for(const std::vector<SimMark>& marks) {
  items_.push_back({marks, 0, nullptr, std::make_shared<bool>(false)});
}

void SimStream::advance(bool is_over) {
  while (!items_.empty()) {
    const Item& first = items_.front();
    const bool is_ready = (is_over || clock_.now() >= first.due) &&
                          are_all_of(first.after, [](const SimMark& mark) { return *mark; });
    if (!is_ready) return;
    const Item item = std::move(items_.front());
    items_.pop_front();
    if (item.work) item.work();
    *item.mark = true;
  }
}

Status SimPlaceInStream::reached(bool& is_reached) {
  stream_.advance();
  is_reached = *mark_;
  return {};
}

Status SimPlaceInStream::follow(const GpuEnd& end) {
  stream_.wait_for(static_cast<const SimGpuEnd&>(end).marks());
  return {};
}

SimLanes::SimLanes(SimNetwork& network, int rank, const SimGpus& gpus, Nanoseconds delay_max,
                   std::function<void()> wake, std::function<void()> moved)
    : network_(network),
      rank_(rank),
      gpus_(gpus),
      delay_max_(delay_max),
      wake_(std::move(wake)),
      moved_(std::move(moved)) {}

void SimLanes::enqueue(const ComputeJob& job) {
  Job late{.job = job, .to = {job.to.begin(), job.to.end()}};
  late.operands.assign(job.sources.begin(), job.sources.end());
  // Work in memory that the host shares with GPUs is done by any of them.
  Gpu gpu = static_cast<Gpu>(job.cookie % SimGpus::kGpus);
  for (const Operand& operand : job.sources) {
    late.pieces.emplace_back(operand.pieces.begin(), operand.pieces.end());
    late.remote.emplace_back(operand.remote.begin(), operand.remote.end());
    for (const Piece& piece : operand.pieces) gpu = is_on_gpu(piece) ? piece.gpu : gpu;
  }
  bool is_to_host = true;
  for (const Piece& piece : job.to) {
    is_to_host = is_to_host && !is_on_gpu(piece);
    gpu = is_on_gpu(piece) ? piece.gpu : gpu;
  }
  Lane& lane = lanes_[{gpu, is_to_host}];
  const Nanoseconds begin = std::max(network_.clock().now(), lane.empty() ? 0 : lane.back().due);
  late.due = begin + static_cast<Nanoseconds>(network_.random()() % kCopyMax);
  if (delay_max_ > 0 && network_.chance(kDelayed)) {
    late.due += static_cast<Nanoseconds>(network_.random()() % static_cast<uint64_t>(delay_max_));
  }
  lane.push_back(std::move(late));
  network_.at(lane.back().due, [this, is_alive = is_alive_] {
    if (*is_alive && !network_.is_dead(rank_)) run_due();
  });
}

void SimLanes::run_due() {
  for (auto& [key, lane] : lanes_) {
    while (!lane.empty() && lane.front().due <= network_.clock().now()) run(lane);
  }
}

void SimLanes::run_next() {
  Lane* next = nullptr;
  for (auto& [key, lane] : lanes_) {
    if (lane.empty()) continue;
    if (next == nullptr || lane.front().due < next->front().due) next = &lane;
  }
  if (next != nullptr) run(*next);
}

void SimLanes::run(Lane& lane) {
  Job job = std::move(lane.front());
  lane.pop_front();
  for (std::size_t i = 0; i < job.operands.size(); ++i) {
    job.operands[i].pieces = job.pieces[i];
    job.operands[i].remote = job.remote[i];
  }
  job.job.to = job.to;
  job.job.sources = job.operands;
  InlineCompute compute;
  Outcome outcome;
  RC_ASSERT(compute.submit(ReachedJob(job.job, gpus_).job()).ok());
  compute.poll(outcome);
  *job.mark = true;
  done_.emplace_back(job.job.cookie, outcome.status);
  wake_();
  moved_();
}

bool SimLanes::poll(ComputeSink& sink) {
  polls_ = network_.clock().now() == polled_at_ ? polls_ + 1 : 0;
  polled_at_ = network_.clock().now();
  if (done_.empty() && polls_ > kPollsMax) run_next();
  if (done_.empty()) return false;
  for (const auto& [cookie, status] : std::exchange(done_, {})) sink.computed(cookie, status);
  return true;
}

std::shared_ptr<const GpuEnd> SimLanes::end() const {
  std::vector<SimMark> marks;
  for (const auto& [key, lane] : lanes_) {
    if (!lane.empty()) marks.push_back(lane.back().mark);
  }
  return marks.empty() ? nullptr : std::make_shared<const SimGpuEnd>(std::move(marks));
}

}  // namespace rdmacoll
