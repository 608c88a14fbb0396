#include "sim/scale.h"

#include <algorithm>
#include <memory>
#include <numeric>

#include "base/text.h"
#include "collectives/choose.h"
#include "engine/engine.h"
#include "sim/sizes.h"
#include "transport/sim/sim_network.h"
#include "transport/sim/sim_transport.h"

namespace rdmacoll {
namespace {

// The first step makes connections. After two equal steps a plan takes over.
constexpr int kSteps = 3;
constexpr Nanoseconds kStepMax = 3600 * kSecond;  // virtual time

SimPolicy policy_of(const ScaleQuery& query) {
  SimPolicy policy;
  policy.links = query.links;
  policy.moves_bytes = query.moves_bytes();
  policy.node_ranks = query.node_ranks;
  policy.pool_alone = query.links.via_nic;
  policy.eager_bytes = query.links.eager_bytes;
  policy.peer_timeout = kStepMax;
  return policy;
}

std::vector<int> nodes_of(const ScaleQuery& query) {
  std::vector<int> nodes;
  for (int rank = 0; rank < query.ranks; ++rank) nodes.push_back(rank / query.node_ranks);
  return nodes;
}

float value_of(int rank, std::size_t element) {
  return static_cast<float>(rank % 5) + static_cast<float>(element % 7);
}

struct ScaleRank {
  std::unique_ptr<MemoryPool> pool;
  std::unique_ptr<ModelledCompute> compute;
  std::unique_ptr<Engine> engine;
  std::vector<std::vector<float>> data;  // by operation, if bytes are moved
  Nanoseconds wakes_at = 0;              // the next scheduled wake-up
};

class ScaleWorld {
 public:
  explicit ScaleWorld(const ScaleQuery& query)
      : query_(query),
        moves_(query.moves_bytes()),
        network_(query.ranks, policy_of(query)),
        sizes_(std::accumulate(query.bytes.begin(), query.bytes.end(), std::size_t{4096})),
        ranks_(query.ranks) {}

  Status run(ScaleResult& result) {
    for (int rank = 0; rank < query_.ranks; ++rank) RC_RETURN_IF_ERROR(make(rank));
    for (int step = 0; step < kSteps; ++step) {
      const Nanoseconds begin = network_.clock().now();
      RC_RETURN_IF_ERROR(run_step(begin));
      result.time_us = static_cast<double>(network_.clock().now() - begin) / kMicrosecond;
    }
    result.is_checked = moves_;
    return {};
  }

 private:
  Status make(int number) {
    ScaleRank& rank = ranks_[number];
    World world{"scale", 1, number, {}};
    for (int r = 0; r < query_.ranks; ++r) {
      world.members.push_back({cat("host", r / query_.node_ranks), r, r / query_.node_ranks});
    }
    Config config;
    if (!query_.algorithm.empty()) config.allreduce_algorithms = {{query_.algorithm}};
    config.plan_repeats = 2;
    if (moves_) {
      RC_RETURN_IF_ERROR(MemoryPool::create(config.pool_bytes, rank.pool));
      for (uint64_t bytes : query_.bytes) rank.data.emplace_back(bytes / sizeof(float));
    } else {
      rank.pool = std::make_unique<SizedPool>(config.pool_bytes);
    }
    rank.compute = std::make_unique<LinkCompute>(network_, query_.links, number, moves_);
    network_.transport(number).use_pool(*rank.pool);
    rank.engine = std::make_unique<Engine>(
        EngineParts{std::move(world), config, network_.transport(number), *rank.compute, *rank.pool,
                    network_.clock(), Log::silent(number), tuning_for(query_.links)});
    network_.wake(number);
    return {};
  }

  Status run_step(Nanoseconds begin) {
    left_ = query_.bytes.size() * ranks_.size();
    error_ = {};
    for (std::size_t i = 0; i < query_.bytes.size(); ++i) {
      fill(i);
      const auto ready = static_cast<Nanoseconds>(query_.ready_us[i] * kMicrosecond);
      network_.at(begin + ready, [this, i] { submit(i); });
    }
    while (left_ > 0 && error_.ok()) {
      const int rank = network_.take_woken();
      if (rank >= 0) {
        drive(rank);
      } else if (!network_.step() || network_.clock().now() - begin > kStepMax) {
        return {Code::failed, cat("the simulation stands still with ", left_,
                                  " operations left: ", ranks_.front().engine->state())};
      }
    }
    for (std::size_t i = 0; error_.ok() && i < query_.bytes.size(); ++i) check(i);
    return error_;
  }

  void fill(std::size_t operation) {
    for (std::size_t rank = 0; moves_ && rank < ranks_.size(); ++rank) {
      std::vector<float>& values = ranks_[rank].data[operation];
      for (std::size_t i = 0; i < values.size(); ++i) {
        values[i] = value_of(static_cast<int>(rank), i);
      }
    }
  }

  void check(std::size_t operation) {
    float constant = 0;
    for (int rank = 0; rank < query_.ranks; ++rank) constant += value_of(rank, 0);
    for (std::size_t rank = 0; moves_ && rank < ranks_.size(); ++rank) {
      const std::vector<float>& values = ranks_[rank].data[operation];
      for (std::size_t i = 0; i < values.size(); ++i) {
        const float wanted = constant + static_cast<float>(query_.ranks) * value_of(0, i);
        if (values[i] == wanted) continue;
        error_ = {Code::failed, cat("rank ", rank, " has ", values[i], " instead of ", wanted,
                                    " in element ", i, " of operation ", operation)};
        return;
      }
    }
  }

  void submit(std::size_t operation) {
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
      Request request;
      auto* const memory = moves_
                               ? reinterpret_cast<std::byte*>(ranks_[rank].data[operation].data())
                               : sizes_.data() + offset_of(operation);
      const auto elements = static_cast<int64_t>(query_.bytes[operation] / sizeof(float));
      request.name = cat("bucket_", operation);
      request.tensors = {{memory, memory, {elements}, ""}};
      request.done = [this](const Status& status) {
        --left_;
        if (!status.ok() && error_.ok()) error_ = status;
      };
      const Status accepted =
          ranks_[rank].engine->submit(std::make_shared<Operation>(std::move(request)));
      RC_ASSERT(accepted.ok(), accepted.message());
      network_.wake(static_cast<int>(rank));
    }
  }

  std::size_t offset_of(std::size_t operation) const {
    const auto first = query_.bytes.begin();
    return std::accumulate(first, first + static_cast<std::ptrdiff_t>(operation), std::size_t{0});
  }

  // Steps a rank's engine as soon as its processor is free.
  void drive(int number) {
    ScaleRank& rank = ranks_[number];
    if (network_.busy_until(number) > network_.clock().now()) {
      return wake_at(number, network_.busy_until(number));
    }
    if (rank.engine->progress()) return network_.wake(number);
    const Nanoseconds due = rank.engine->next_deadline();
    if (due < network_.clock().now() + kStepMax / 100) wake_at(number, due);
  }

  void wake_at(int number, Nanoseconds time) {
    ScaleRank& rank = ranks_[number];
    if (rank.wakes_at > network_.clock().now() && rank.wakes_at <= time) return;
    rank.wakes_at = time;
    network_.at(time, [this, number] { network_.wake(number); });
  }

  const ScaleQuery& query_;
  const bool moves_;
  SimNetwork network_;
  Addresses sizes_;
  std::vector<ScaleRank> ranks_;
  std::size_t left_ = 0;
  Status error_;
};

Choice choice_of(const ScaleQuery& query, const Spread& spread, uint64_t bytes) {
  std::vector<Forced> forced;
  if (!query.algorithm.empty()) {
    forced.push_back({algorithm_from(query.algorithm), UINT64_MAX});
  }
  return choose(AlgorithmRow::Result::sum, tuning_for(query.links),
                {.ranks = query.ranks,
                 .one_node = query.node_ranks >= query.ranks,
                 .bytes = bytes,
                 .forced = forced,
                 .spread = spread});
}

Status check(const ScaleQuery& query) {
  if (query.ranks < 2 || query.ranks > ScaleQuery::kRanksMax) {
    return {Code::invalid,
            cat(query.ranks, " ranks are not simulated: give 2 to ", ScaleQuery::kRanksMax, ".")};
  }
  if (query.node_ranks < 1) return {Code::invalid, "a node has 1 rank or more."};
  const auto is_wrong = [](uint64_t bytes) { return bytes == 0 || bytes % sizeof(float) != 0; };
  if (query.bytes.empty() || query.bytes.size() != query.ready_us.size() ||
      std::any_of(query.bytes.begin(), query.bytes.end(), is_wrong)) {
    return {Code::invalid, "an operation has 4 bytes or a multiple of that, and a time."};
  }
  return {};
}

}  // namespace

bool ScaleQuery::moves_bytes() const {
  const uint64_t each = std::accumulate(bytes.begin(), bytes.end(), uint64_t{0});
  return ranks <= kMovingRanksMax && each * static_cast<uint64_t>(ranks) <= moving_bytes_max;
}

Status simulate_scale(const ScaleQuery& query, ScaleResult& result) {
  RC_RETURN_IF_ERROR(check(query));
  const std::vector<int> nodes = nodes_of(query);
  const Shape shape{.ranks = query.ranks, .rank = 0, .nodes = nodes};
  const Spread spread(shape);
  for (uint64_t bytes : query.bytes) {
    const Choice choice = choice_of(query, spread, bytes);
    const Schedule schedule = make_schedule(choice.algorithm, shape);
    const auto sends_of_rank =
        static_cast<uint64_t>(std::count_if(schedule.steps.begin(), schedule.steps.end(),
                                            [](const Step& step) { return sends(step.verb); }));
    const uint64_t segments = (bytes + choice.segment_bytes - 1) / choice.segment_bytes;
    result.transfers += sends_of_rank * segments * static_cast<uint64_t>(query.ranks);
    result.algorithms.emplace_back(name_of(choice.algorithm));
  }
  result.is_simulated = result.transfers <= query.transfers_max;
  if (!result.is_simulated) return {};
  return ScaleWorld(query).run(result);
}

}  // namespace rdmacoll
