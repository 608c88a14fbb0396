#include "sim/simulator.h"

#include <algorithm>
#include <memory>
#include <vector>

#include "base/text.h"
#include "sim/random_source.h"
#include "sim/rank.h"
#include "sim/script.h"
#include "sim/trace.h"
#include "transport/sim/sim_network.h"

namespace rdmacoll {
namespace {

constexpr Nanoseconds kEndOfTime = 300 * kSecond;      // virtual time
constexpr Nanoseconds kThought = 20 * kMicrosecond;    // between two acts of a user's thread
constexpr Nanoseconds kIdleTurn = 100 * kMicrosecond;  // when ranks poll and the network is idle
constexpr uint64_t kStepsMax = 40'000'000;

class Simulation {
 public:
  // `words`: control messages. A restarted world receives them from the previous one. Otherwise
  // they are recorded here for the next one.
  Simulation(const SimScript& script, SimTrace& trace, std::vector<SimMessage>& words)
      : script_(script),
        trace_(trace),
        network_(script.members(), script.network),
        start_(network_.clock().now()) {
    trace.begin(network_.clock());
    for (int rank = 0; rank < script.members(); ++rank) {
      ranks_.push_back(std::make_unique<SimRank>(script_, network_, trace_, rank));
    }
    if (script.sleeper >= 0) ranks_[script.sleeper]->call_before_jobs([this] { suspend(); });
    if (script.fault == Fault::late) {
      hear_late(words);
    } else if (script.late_messages > 0) {
      network_.keep_messages(words);
    }
  }

  SimOutcome run() {
    SimOutcome outcome;
    outcome.scenario = script_.text();
    trace_.print(outcome.scenario);
    uint64_t steps = 0;
    while (!over()) {
      if (++steps > kStepsMax || network_.clock().now() - start_ > kEndOfTime) {
        outcome.hang = report_hang();
        break;
      }
      strike();
      turn();
    }
    for (const auto& rank : ranks_) rank->add_to(outcome);
    return outcome;
  }

 private:
  // The program repeats, so an old message is most plausible at about its original time.
  void hear_late(const std::vector<SimMessage>& words) {
    RandomSource random(script_.network.seed, 12);
    const auto last = static_cast<int64_t>(words.size()) - 1;
    for (int left = words.empty() ? 0 : script_.late_messages; left > 0; --left) {
      SimMessage word = words[static_cast<std::size_t>(random.between(0, last))];
      word.after = word.after * random.between(50, 150) / 100;
      network_.arrive_late(std::move(word));
    }
  }

  bool runs(int rank) const {
    return !network_.is_dead(rank) && !ranks_[rank]->finished() && !is_paused(rank);
  }
  bool is_paused(int rank) const {
    const Nanoseconds now = network_.clock().now();
    return (rank == script_.victim && now < paused_until_) ||
           (rank == script_.sleeper && now < asleep_until_);
  }
  bool over() const {
    for (int rank = 0; rank < script_.members(); ++rank) {
      if (!network_.is_dead(rank) && !ranks_[rank]->finished()) return false;
    }
    return true;
  }

  // The sleeper is in the middle of a job. All others go on.
  void suspend() {
    if (asleep_until_ > 0 || network_.clock().now() - start_ < script_.sleep_at) return;
    asleep_until_ = network_.clock().now() + script_.sleep;
    trace_.print(cat("rank ", script_.sleeper, " is suspended within a job"));
    while (network_.clock().now() < asleep_until_) {
      strike();
      turn();
    }
  }

  void strike() {
    if (struck_ || network_.clock().now() - start_ < script_.fault_at) return;
    struck_ = true;
    switch (script_.fault) {
      case Fault::kill:
        network_.kill(script_.victim);
        ranks_[script_.victim]->lose_gpus();
        break;
      case Fault::nap:
      case Fault::stop:
        paused_until_ = network_.clock().now() + script_.pause;
        break;
      case Fault::dry:
        ranks_[script_.victim]->exhaust();
        break;
      case Fault::cut:
        if (!network_.cut(script_.victim, script_.partner)) return;
        break;
      case Fault::unplug:
        network_.unplug(script_.victim);
        break;
      default:  // faults in submitted operations
        return;
    }
    trace_.print(script_.fault_text());
  }

  // One event: a rank is stepped, a user's thread continues, or a message arrives.
  void turn() {
    awake_.clear();
    uint64_t random = 0;
    for (int rank = 0; rank < script_.members(); ++rank, random >>= 2) {
      if (rank % 32 == 0) random = network_.random()();
      if (!runs(rank)) continue;
      if ((random & 3) == 0) ranks_[rank]->act();
      if (ranks_[rank]->is_awake()) awake_.push_back(rank);
    }
    const Nanoseconds now = network_.clock().now();
    if (!awake_.empty() && network_.chance(0.7)) {
      ranks_[awake_[network_.random()() % awake_.size()]]->step();
      network_.clock().advance_to(now + 200);  // polling takes time, too
      return;
    }
    if (!awake_.empty() && network_.next_event() > now + kMillisecond) {
      network_.clock().advance_to(now + kIdleTurn);
      return;
    }
    if (awake_.empty() && network_.next_event() <= now + kThought) {
      network_.step();
      return;
    }
    const Nanoseconds limit = std::max(next_time(), now);
    if (!network_.step(limit)) {
      network_.clock().advance_to(limit == kNever ? now + kMillisecond : limit);
    }
  }

  // The next time when something is due, apart from network events.
  Nanoseconds next_time() const {
    const Nanoseconds now = network_.clock().now();
    Nanoseconds limit = struck_ ? kNever : start_ + script_.fault_at;
    if (asleep_until_ > now) limit = std::min(limit, asleep_until_);
    if (paused_until_ > now) limit = std::min(limit, paused_until_);
    for (int rank = 0; rank < script_.members(); ++rank) {
      if (!runs(rank)) continue;
      limit = std::min(limit, ranks_[rank]->deadline());
      if (ranks_[rank]->can_act()) limit = std::min(limit, now + kThought);
    }
    return limit;
  }

  std::string report_hang() const {
    std::string text;
    for (int rank = 0; rank < script_.members(); ++rank) {
      if (runs(rank)) text += ranks_[rank]->waits_for();
    }
    return text.empty() ? "the simulation does not end" : text;
  }

  const SimScript& script_;
  SimTrace& trace_;
  SimNetwork network_;
  Nanoseconds start_;
  std::vector<std::unique_ptr<SimRank>> ranks_;
  std::vector<int> awake_;
  Nanoseconds paused_until_ = 0, asleep_until_ = 0;
  bool struck_ = false;
};

}  // namespace

SimOutcome simulate(uint64_t seed, bool is_printed) {
  return simulate(make_script(seed), is_printed);
}

SimOutcome simulate(const SimScript& script, bool is_printed) {
  SimTrace trace(is_printed);
  std::vector<SimMessage> words;
  SimOutcome outcome = Simulation(script, trace, words).run();
  if (script.late_messages == 0 || !outcome.ok()) return outcome;
  return Simulation(script.next_world(), trace, words).run();
}

}  // namespace rdmacoll
