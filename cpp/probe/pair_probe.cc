#include "probe/pair_probe.h"

#include <algorithm>
#include <numeric>

#include "base/text.h"

namespace rdmacoll::probe {
namespace {

constexpr uint32_t kWindow = 16;
// The largest window in one direction. A larger one would measure the caches.
constexpr std::size_t kWindowBytesMax = std::size_t{8} << 20;
constexpr std::size_t kWindowPoolShare = 16;
constexpr uint32_t kWarmUpRounds = 8;
constexpr uint32_t kRoundsMax = 20'000;
static_assert(kWindow <= kWindowMax);

double median(std::vector<double> values) {
  RC_ASSERT(!values.empty());
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

double half_us(Nanoseconds time) { return static_cast<double>(time) / kMicrosecond / 2; }

// The mean of a burst. A rank that is late in one round finds the other's data there in the next,
// so single rounds are short and long in turn.
double mean(const std::vector<Nanoseconds>& times) {
  return static_cast<double>(std::accumulate(times.begin(), times.end(), Nanoseconds{0})) /
         static_cast<double>(times.size());
}

// Sends each task to the follower, and runs it together with the follower.
class Leader {
 public:
  Leader(TaskRunner& runner, const Setting& setting)
      : runner_(runner), setting_(setting), deadline_(setting.clock.now() + setting.plan.limit) {}

  Status measure(uint64_t bytes, Row& row);
  Status end();

 private:
  Status check(uint64_t bytes);
  Status time(Pattern pattern, uint64_t bytes, Times& times);
  Status speed(uint64_t bytes, bool forward, bool back, double& speed);
  Status run(const Task& task, const std::string& what);
  uint32_t window(uint64_t bytes) const;
  uint32_t rounds_for_a_burst(double seconds_a_round, uint32_t least) const;

  TaskRunner& runner_;
  const Setting& setting_;
  Nanoseconds deadline_;
  double seconds_ = 0;  // time of the last task, until the follower reported its end
};

Status Leader::measure(uint64_t bytes, Row& row) {
  const Plan& plan = setting_.plan;
  row.bytes = bytes;
  RC_RETURN_IF_ERROR(check(bytes));
  if (plan.latency) RC_RETURN_IF_ERROR(time(Pattern::ping_pong, bytes, row.latency));
  if (plan.exchange) RC_RETURN_IF_ERROR(time(Pattern::exchange, bytes, row.exchange));
  if (!plan.bandwidth) return {};
  RC_RETURN_IF_ERROR(speed(bytes, true, false, row.speeds.forward));
  RC_RETURN_IF_ERROR(speed(bytes, false, true, row.speeds.back));
  return speed(bytes, true, true, row.speeds.both);
}

Status Leader::check(uint64_t bytes) {
  const Task task{.pattern = Pattern::stream,
                  .checks = true,
                  .bytes = bytes,
                  .rounds = 2 * window(bytes),
                  .window = window(bytes)};
  return run(task, "the comparison of received bytes");
}

Status Leader::time(Pattern pattern, uint64_t bytes, Times& times) {
  const std::string what = pattern == Pattern::exchange ? "the exchange" : "the ping-pong";
  Task task{.pattern = pattern, .bytes = bytes, .rounds = kWarmUpRounds};
  RC_RETURN_IF_ERROR(run(task, what));
  task.rounds = rounds_for_a_burst(seconds_ / kWarmUpRounds, kWarmUpRounds);
  std::vector<double> each;
  for (int i = 0; i < setting_.plan.repeats; ++i) {
    RC_RETURN_IF_ERROR(run(task, what));
    const std::vector<Nanoseconds>& rounds = runner_.rounds();
    times.rounds += rounds.size();
    if (pattern == Pattern::exchange) {
      each.push_back(mean(rounds) / kMicrosecond);
    } else {
      for (const Nanoseconds took : rounds) each.push_back(half_us(took));
    }
  }
  const auto [min, max] = std::minmax_element(each.begin(), each.end());
  times.median_us = median(each);
  times.min_us = *min;
  times.max_us = *max;
  return {};
}

Status Leader::speed(uint64_t bytes, bool forward, bool back, double& speed) {
  Task task{.pattern = Pattern::stream,
            .forward = forward,
            .back = back,
            .bytes = bytes,
            .rounds = 2 * window(bytes),
            .window = window(bytes)};
  RC_RETURN_IF_ERROR(run(task, "the stream"));
  task.rounds = rounds_for_a_burst(seconds_ / task.rounds, task.rounds);
  std::vector<double> each;
  for (int i = 0; i < setting_.plan.repeats; ++i) {
    RC_RETURN_IF_ERROR(run(task, "the stream"));
    const double moved = static_cast<double>(bytes) * task.rounds * (forward && back ? 2 : 1);
    each.push_back(moved / std::max(seconds_, 1e-9) / 1e9);
  }
  speed = median(each);
  return {};
}

Status Leader::run(const Task& task, const std::string& what) {
  const std::string full = cat(what, " of ", bytes_text(task.bytes));
  Message answer;
  const Nanoseconds begin = setting_.clock.now();
  runner_.say({.kind = Message::Kind::task, .task = task});
  RC_RETURN_IF_ERROR(runner_.begin(task, true));
  RC_RETURN_IF_ERROR(turn_until(runner_, setting_, deadline_, full,
                                [&] { return runner_.is_done() && runner_.take(answer); }));
  seconds_ = static_cast<double>(setting_.clock.now() - begin) / kSecond;
  const uint64_t wrong = runner_.count_wrong_bytes() + answer.wrong_bytes;
  if (wrong == 0) return {};
  return {
      Code::failed,
      cat(wrong, " bytes arrived changed between this rank and ", runner_.peer_text(), " in ", full,
          ": the memory, the adapter or the network damages data. Take the machines out "
          "of use until that is found.")};
}

Status Leader::end() {
  Message answer;
  runner_.say({.kind = Message::Kind::end});
  return turn_until(runner_, setting_, deadline_, "the end of the test",
                    [&] { return runner_.take(answer); });
}

uint32_t Leader::window(uint64_t bytes) const {
  const std::size_t fit = std::min(kWindowBytesMax, runner_.pool_bytes() / kWindowPoolShare);
  return static_cast<uint32_t>(std::clamp<uint64_t>(fit / bytes, 1, kWindow));
}

uint32_t Leader::rounds_for_a_burst(double seconds_a_round, uint32_t least) const {
  const double burst = static_cast<double>(setting_.plan.burst) / kSecond;
  const double rounds = burst / std::max(seconds_a_round, 1e-9);
  return static_cast<uint32_t>(std::clamp<double>(rounds, least, kRoundsMax));
}

}  // namespace

Status lead(TaskRunner& runner, const Setting& setting, std::vector<Row>& rows) {
  Leader leader(runner, setting);
  for (const uint64_t bytes : setting.plan.sizes) {
    Row row;
    RC_RETURN_IF_ERROR(leader.measure(bytes, row));
    rows.push_back(row);
  }
  return leader.end();
}

Status follow(TaskRunner& runner, const Setting& setting) {
  const Nanoseconds deadline = setting.clock.now() + setting.plan.limit;
  const auto until = [&](const std::string& what, const std::function<bool()>& done) {
    return turn_until(runner, setting, deadline, what, done);
  };
  while (true) {
    Message message;
    RC_RETURN_IF_ERROR(
        until("waiting for the next part of the test", [&] { return runner.take(message); }));
    if (message.kind == Message::Kind::end) break;
    RC_RETURN_IF_ERROR(runner.begin(message.task, false));
    RC_RETURN_IF_ERROR(until(cat("a transfer of ", bytes_text(message.task.bytes)),
                             [&] { return runner.is_done(); }));
    runner.say({.kind = Message::Kind::done, .wrong_bytes = runner.count_wrong_bytes()});
  }
  runner.say({.kind = Message::Kind::done});
  // The leader may leave as soon as it has heard this, so a failure does not count here.
  (void)until("the end of the test", [&] { return runner.has_sent_all(); });
  return {};
}

Status turn_until(TaskRunner& runner, const Setting& setting, Nanoseconds deadline,
                  const std::string& what, const std::function<bool()>& done) {
  Nanoseconds moved_at = setting.clock.now();
  const auto after = [](Nanoseconds time) { return cat(time / kMillisecond / 1000.0, " s"); };
  while (!done()) {
    const bool moved = runner.turn();
    if (!runner.failure().ok()) return runner.failure();
    if (moved) {
      moved_at = setting.clock.now();
      if (moved_at < deadline) continue;
    }
    if (done()) break;
    const Nanoseconds now = setting.clock.now();
    if (now >= deadline) {
      return {Code::failed, cat("the test of the path to ", runner.peer_text(),
                                " was not done within ", after(setting.plan.limit), " (in ", what,
                                "): the path is far slower than such paths are. Give it more time "
                                "with --timeout.")};
    }
    if (now - moved_at >= setting.plan.progress_timeout) {
      return {Code::failed,
              cat("nothing moved between this rank and ", runner.peer_text(), " for ",
                  after(setting.plan.progress_timeout), " in ", what,
                  ", though both ends live: the path loses data. Compare the MTU of both "
                  "ends and look at the counters of dropped packets on the way.")};
    }
    setting.idle(moved_at, std::min(deadline, moved_at + setting.plan.progress_timeout));
  }
  return {};
}

}  // namespace rdmacoll::probe
