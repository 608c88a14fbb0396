#include "sim/node_job.h"

#include <bit>
#include <cstring>
#include <functional>
#include <memory>
#include <span>
#include <utility>

#include "agreement/messages.h"
#include "base/text.h"
#include "collectives/choose.h"
#include "collectives/node_cost.h"
#include "engine/engine.h"
#include "sim/sizes.h"
#include "transport/sim/sim_network.h"
#include "transport/sim/sim_transport.h"

namespace rdmacoll {
namespace {

constexpr Nanoseconds kStepMax = kSecond;  // virtual time
constexpr uint32_t kEpoch = 1;

// Messages cost what NodeMemory says. Data does not travel: peers read it. `bytes`: of a sum.
LinkModel links_of(const NodeMemory& memory, uint64_t bytes) {
  LinkModel links = kNicLinks;
  const auto segment = static_cast<double>(bytes);
  links.node = {.latency_us = memory.round_us_of(segment),
                .overhead_us = memory.message_us_of(segment, 0),
                .bytes_per_us = 1e9};
  links.memory = memory;
  return links;
}

// Jobs take the time of the cost model within a node.
class NodeCompute final : public ModelledCompute {
 public:
  NodeCompute(SimNetwork& network, const NodeJob& job, int rank,
              const std::vector<std::unique_ptr<MemoryPool>>& pools, int& trying_writes)
      : ModelledCompute(network, rank, job.moves_bytes),
        rank_(rank),
        pools_(pools),
        trying_writes_(trying_writes),
        cost_(job.machine, job.ranks, job.ranks, static_cast<double>(job.bytes), segment_of(job)) {}

  void slow_down(double factor) { slow_ = factor; }

 private:
  static double segment_of(const NodeJob& job) {
    const Facts facts{.ranks = job.ranks, .bytes = job.bytes};
    const Algorithm direct = *algorithm_from("direct");
    const uint64_t segment =
        segment_bytes_of(direct, tuning_for(links_of(job.machine, job.bytes)), facts);
    return static_cast<double>(std::min(segment, job.bytes));
  }
  DataLocation location_of(const std::byte* memory) const {
    for (std::size_t rank = 0; rank < pools_.size(); ++rank) {
      if (!pools_[rank]->contains(memory, 1)) continue;
      return static_cast<int>(rank) == rank_ ? DataLocation::pool : DataLocation::peer_pool;
    }
    return DataLocation::caller;
  }
  DataLocation location_of(const Operand& operand) const {
    if (operand.remote.empty()) return location_of(operand.pieces.front().data);
    const uint64_t address = operand.remote.front().address;
    const DataLocation location = location_of(reinterpret_cast<const std::byte*>(address));
    return location == DataLocation::caller ? DataLocation::peer_caller : location;
  }
  static bool is_of_peer(DataLocation location) {
    return location == DataLocation::peer_pool || location == DataLocation::peer_caller;
  }
  double time_us(const ComputeJob& job) const override {
    trying_writes_ += job.shown && job.tries_writes ? 1 : 0;
    return slow_ * quick_time_us(job);
  }
  double quick_time_us(const ComputeJob& job) const {
    const auto bytes = static_cast<double>(total_bytes(job.to));
    if (bytes == 0) return 0;
    DataLocation to = location_of(job.to.front().data);
    if (job.sources.size() == 1) {
      // Lent slots: data or an answer goes there, or an answer is read.
      DataLocation from = location_of(job.sources[0]);
      if (to == DataLocation::peer_pool || (to == DataLocation::pool && !job.shown)) {
        to = DataLocation::lent;
      }
      if (from == DataLocation::pool) from = DataLocation::peer_pool;
      return cost_.copy_us(bytes, from, to);
    }
    DataLocation own = DataLocation::caller, peer = DataLocation::pool;
    for (const Operand& operand : job.sources) {
      const DataLocation location = location_of(operand);
      (is_of_peer(location) ? peer : own) = location;
    }
    return cost_.reduce_us(bytes, own, peer, static_cast<int>(job.sources.size()) - 1, to);
  }

  int rank_;
  const std::vector<std::unique_ptr<MemoryPool>>& pools_;
  double slow_ = 1;
  int& trying_writes_;
  NodeCost cost_;
};

// Values of many magnitudes, so nearly every sum of three or more depends on the order.
float value_of(int rank, int sum, std::size_t i) {
  uint32_t bits = static_cast<uint32_t>(i) * 2654435761u + static_cast<uint32_t>(rank) * 40503u +
                  static_cast<uint32_t>(sum) * 97u + 12345u;
  bits ^= bits >> 15;
  bits *= 2246822519u;
  bits ^= bits >> 13;
  const float value = 1.f + static_cast<float>(bits & 0xffff) / 65536.f;
  return std::ldexp(bits >> 31 != 0 ? -value : value, static_cast<int>(bits >> 16 & 15) - 8);
}

// The canonical order is a binary tree over the ranks, split at the largest power of two.
float canonical_sum(std::span<const float> values) {
  if (values.size() == 1) return values[0];
  const std::size_t half = std::bit_ceil(values.size()) / 2;
  return canonical_sum(values.first(half)) + canonical_sum(values.subspan(half));
}

class JobWorld {
 public:
  explicit JobWorld(const NodeJob& job)
      : job_(job),
        links_(links_of(job.machine, job.bytes)),
        network_(job.ranks, policy_of(job, links_)),
        sizes_(job.moves_bytes ? 4096 : job.bytes * static_cast<uint64_t>(job.sums)),
        engines_(job.ranks),
        wakes_at_(job.ranks, 0),
        given_(job.ranks),
        data_(job.ranks) {
    network_.keep_messages(messages_);
  }

  NodeJobResult run() {
    for (int rank = 0; rank < job_.ranks && result_.error.empty(); ++rank) make_pool();
    for (int rank = 0; rank < job_.ranks; ++rank) make(rank);
    result_.steps_before_plan = job_.steps;
    if (job_.is_free) {
      run_freely();
      return std::move(result_);
    }
    for (int step = 0; step < job_.steps && result_.error.empty(); ++step) {
      const Nanoseconds begin = network_.clock().now();
      run_step(begin);
      result_.step_us.push_back(static_cast<double>(network_.clock().now() - begin) / kMicrosecond);
      result_.trying_writes.push_back(std::exchange(trying_writes_, 0));
      note_movements(step);
      if (job_.moves_bytes) check(step);
    }
    return std::move(result_);
  }

 private:
  static SimPolicy policy_of(const NodeJob& job, const LinkModel& links) {
    SimPolicy policy;
    policy.links = links;
    policy.moves_bytes = job.moves_bytes;
    policy.peer_timeout = 3600 * kSecond;
    return policy;
  }
  void make_pool() {
    const std::size_t bytes = Config().pool_bytes;
    if (!job_.moves_bytes) {
      pools_.push_back(std::make_unique<SizedPool>(bytes));
      return;
    }
    const Status status = MemoryPool::create(bytes, pools_.emplace_back());
    RC_ASSERT(status.ok(), status.message());
  }
  void make(int rank) {
    World world{"job", kEpoch, rank, {}};
    for (int r = 0; r < job_.ranks; ++r) world.members.push_back({"host", r, 0});
    Config config;
    config.tune = job_.tune;
    config.canonical = job_.canonical;
    if (!job_.algorithm.empty()) config.allreduce_algorithms = {{job_.algorithm}};
    computes_.push_back(
        std::make_unique<NodeCompute>(network_, job_, rank, pools_, trying_writes_));
    network_.transport(rank).use_pool(*pools_[rank]);
    engines_[rank] = std::make_unique<Engine>(EngineParts{
        std::move(world), config, network_.transport(rank), *computes_.back(), *pools_[rank],
        network_.clock(), Log::silent(rank), tuning_for(links_of(job_.profile, job_.bytes))});
    network_.wake(rank);
    for (int sum = 0; job_.moves_bytes && sum < job_.sums; ++sum) {
      std::vector<float>& values = given_[rank].emplace_back(elements());
      for (std::size_t i = 0; i < values.size(); ++i) values[i] = value_of(rank, sum, i);
    }
    data_[rank] = given_[rank];
  }

  std::size_t elements() const { return job_.bytes / sizeof(float); }

  void run_step(Nanoseconds begin) {
    begin_step(static_cast<int>(result_.step_us.size()));
    for (int sum = 0; sum < job_.sums; ++sum) {
      for (int rank = 0; rank < job_.ranks; ++rank) submit(rank, sum);
    }
    run_until_done(job_.ranks * job_.sums, begin + kStepMax);
  }

  // Ranks do not wait for the ends of each other's steps.
  void run_freely() {
    steps_.assign(job_.ranks, 0);
    for (int rank = 0; rank < job_.ranks; ++rank) submit_step(rank);
    run_until_done(job_.ranks * job_.sums * job_.steps, job_.steps * kStepMax);
  }
  void submit_step(int rank) {
    if (rank == 0) begin_step(steps_[0]);
    auto begun = std::make_shared<FreeStep>(FreeStep{network_.clock().now(), job_.sums});
    for (int sum = 0; sum < job_.sums; ++sum) {
      submit(rank, sum, [this, rank, begun] { ended(rank, *begun); });
    }
  }
  struct FreeStep {
    Nanoseconds began;
    int left;
    Nanoseconds least = kNever;
  };
  void ended(int rank, FreeStep& step) {
    const Nanoseconds time = network_.clock().now() - step.began;
    step.least = std::min(step.least, time);
    if (--step.left > 0) return;
    if (rank == 0) {
      result_.step_us.push_back(static_cast<double>(time) / kMicrosecond);
      result_.least_us.push_back(static_cast<double>(step.least) / kMicrosecond);
    }
    if (++steps_[rank] == job_.steps) return;
    network_.at(network_.clock().now(), [this, rank] { submit_step(rank); });
  }

  void begin_step(int step) {
    if (step != job_.slow_from || job_.slow.empty()) return;
    for (int rank = 0; rank < job_.ranks; ++rank) computes_[rank]->slow_down(job_.slow[rank]);
  }

  void run_until_done(int sums, Nanoseconds latest) {
    left_ += sums;
    while (left_ > 0 && result_.error.empty()) {
      const int rank = network_.take_woken();
      if (rank >= 0) {
        drive(rank);
      } else if (!network_.step() || network_.clock().now() > latest) {
        result_.error = cat("the job stands still: ", engines_.front()->state());
      }
    }
  }

  void submit(int rank, int sum, const std::function<void()>& ended = {}) {
    std::byte* memory = sizes_.data() + job_.bytes * static_cast<uint64_t>(sum);
    if (job_.moves_bytes) {
      data_[rank][sum] = given_[rank][sum];
      memory = reinterpret_cast<std::byte*>(data_[rank][sum].data());
    }
    Request request;
    request.name = cat("gradient_", sum);
    request.tensors = {{memory, memory, {static_cast<int64_t>(elements())}, ""}};
    request.done = [this, ended](const Status& status) {
      --left_;
      if (!status.ok()) result_.error = status.message();
      if (ended) ended();
    };
    const Status accepted = engines_[rank]->submit(std::make_shared<Operation>(std::move(request)));
    RC_ASSERT(accepted.ok(), accepted.message());
    network_.wake(rank);
  }

  // Steps a rank's engine as soon as its processor is free.
  void drive(int rank) {
    const Nanoseconds now = network_.clock().now();
    if (network_.busy_until(rank) > now) return wake_at(rank, network_.busy_until(rank));
    if (engines_[rank]->progress()) return network_.wake(rank);
    const Nanoseconds due = engines_[rank]->next_deadline();
    if (due < now + kStepMax) wake_at(rank, due);
  }
  void wake_at(int rank, Nanoseconds time) {
    if (wakes_at_[rank] > network_.clock().now() && wakes_at_[rank] <= time) return;
    wakes_at_[rank] = time;
    network_.at(time, [this, rank] { network_.wake(rank); });
  }

  // The root tells rank 1 of each decision, and of the plan.
  void note_movements(int step) {
    std::vector<Movement>& movements = result_.movements.emplace_back();
    for (const SimMessage& sent : messages_) {
      if (sent.from != 0 || sent.to != 1) continue;
      Message message;
      const bool is_known = decode(kEpoch, job_.ranks, sent.message, message);
      RC_ASSERT(is_known);
      if (const auto* decision = std::get_if<Decision>(&message)) {
        movements.push_back(decision->movement);
      } else if (const auto* plan = std::get_if<PlanMessage>(&message)) {
        planned_.clear();
        for (const PlannedDecision& next : plan->decisions) planned_.push_back(next.movement);
        result_.steps_before_plan = std::min(result_.steps_before_plan, step);
      }
    }
    messages_.clear();
    if (movements.empty()) movements = planned_;
  }

  void check(int step) {
    std::vector<float> of_element(job_.ranks);
    if (step == 0) first_ = data_[0];
    for (int rank = 0; rank < job_.ranks; ++rank) {
      for (int sum = 0; sum < job_.sums; ++sum) {
        const std::vector<float>&is = data_[rank][sum], &was = first_[sum];
        const std::size_t bytes = is.size() * sizeof(float);
        result_.is_equal &= std::memcmp(is.data(), was.data(), bytes) == 0;
        for (std::size_t i = 0; step == 0 && rank == 0 && i < is.size(); ++i) {
          for (int r = 0; r < job_.ranks; ++r) of_element[r] = given_[r][sum][i];
          result_.is_canonical &= is[i] == canonical_sum(of_element);
        }
      }
    }
  }

  const NodeJob& job_;
  const LinkModel links_;
  SimNetwork network_;
  Addresses sizes_;
  std::vector<std::unique_ptr<MemoryPool>> pools_;
  std::vector<std::unique_ptr<NodeCompute>> computes_;
  std::vector<std::unique_ptr<Engine>> engines_;
  std::vector<Nanoseconds> wakes_at_;
  std::vector<std::vector<std::vector<float>>> given_, data_;  // by rank and sum
  std::vector<std::vector<float>> first_;                      // the results of the first step
  std::vector<SimMessage> messages_;
  std::vector<Movement> planned_;
  int trying_writes_ = 0;  // in this step
  int left_ = 0;
  std::vector<int> steps_;  // by rank, of a free job: those that have ended
  NodeJobResult result_;
};

}  // namespace

NodeJobResult run_node_job(const NodeJob& job) { return JobWorld(job).run(); }

}  // namespace rdmacoll
