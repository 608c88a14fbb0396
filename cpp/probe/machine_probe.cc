#include "probe/machine_probe.h"

#include <sched.h>
#include <sys/eventfd.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "base/fd.h"
#include "base/small_range.h"
#include "memory/page.h"
#include "probe/busy_core.h"
#include "probe/ping_pong.h"
#include "probe/read_costs.h"

namespace rdmacoll::probe {
namespace {

constexpr uint64_t kUsualL2 = 512 << 10;
constexpr uint64_t kUsualL3 = 16 << 20;
// Most of a working set of this many times the L3 has left it before it is used again.
constexpr double kBeyondCache = 1.75;
constexpr std::size_t kTouched = 2 << 20;  // memory is touched in steps of this size
constexpr std::size_t kSamplesMin = 5;
constexpr uint64_t kMiddleMax = 16 << 20;
// Two threads may wait for their cores on a busy machine. After this many slices they give up.
constexpr int kPairSlices = 8;
constexpr std::size_t kPeerSamples = 64;
// Reads that other programs have disturbed are measured again, up to so many times in all.
constexpr int kReadTries = 3;
constexpr double kCountedPageBytes = 4096;  // a profile counts pages of this size
// A machine keeps room for the job itself.
constexpr uint64_t kShareOfMemory = 16;

class Prober {
 public:
  Prober(const MachineFacts& facts, const ProbePlan& plan, Nanoseconds deadline, const Clock& clock)
      : facts_(facts), plan_(plan), clock_(clock), deadline_(deadline) {
    choose_cpus();
  }

  int cpu() const { return facts_.cpus.empty() ? -1 : facts_.cpus.front(); }

  // Numbers that cost little come first, and are measured in any case. The others may find no time.
  MachineProfile measure() {
    MachineProfile found{.machine = facts_.key(),
                         .cores = facts_.cpus.size(),
                         .l2_bytes = facts_.l2_bytes,
                         .l3_bytes = facts_.l3_bytes,
                         .l3_cores = facts_.l3_cpus.size()};
    const uint64_t l2 = facts_.l2_bytes > 0 ? facts_.l2_bytes : kUsualL2;
    const uint64_t l3 = facts_.l3_bytes > l2 ? facts_.l3_bytes : kUsualL3;
    if (const Arena near(round(l2 / 2), false); touch(near)) {
      found.copy_l2 = rate(near, copy);
      found.sum_l2 = rate(near, sum);
      one_copy(near, found);
    }
    if (facts_.l3_bytes > 2 * l2) {
      if (const Arena middle(round(std::max(std::min(l3 / 4, kMiddleMax), 2 * l2)), false);
          touch(middle)) {
        found.copy_l3 = rate(middle, copy);
        found.sum_l3 = rate(middle, sum);
      }
    }
    found.line_ns = line();
    found.switch_ns = switch_between_threads();
    found.peer_copy = peer_copy();
    in_memory(round(static_cast<uint64_t>(static_cast<double>(l3) * kBeyondCache)), found);
    if (plan_.thorough) found.wake_ns = wake_up();
    return found;
  }

 private:
  static uint64_t round(uint64_t bytes) { return std::max<uint64_t>(bytes / kUnit, 16) * kUnit; }

  // All threads together leave most of the memory to the job.
  uint64_t room_in_memory() const {
    return facts_.memory_limit == 0 ? UINT64_MAX : facts_.memory_limit / kShareOfMemory;
  }

  // The first of `order` is the next core, rather than a second hyper-thread of the same one, and
  // with the same L3 if possible.
  void choose_cpus() {
    const std::vector<int>& cpus = facts_.cpus;
    if (cpus.empty()) return;
    others_.assign(cpus.begin() + 1, cpus.end());
    std::stable_partition(others_.begin(), others_.end(),
                          [&](int cpu) { return has(facts_.l3_cpus, cpu); });
    std::stable_partition(others_.begin(), others_.end(),
                          [&](int cpu) { return !has(facts_.siblings, cpu); });
  }
  static bool has(const std::vector<int>& cpus, int cpu) {
    return std::find(cpus.begin(), cpus.end(), cpu) != cpus.end();
  }
  int second_cpu() const { return others_.empty() ? -1 : others_.front(); }
  bool is_late() const { return clock_.now() >= deadline_; }

  // False: there is no memory, or no time before `end`.
  bool touch(const Arena& arena, Nanoseconds end = kNever) const {
    for (std::size_t at = 0; at < arena.size(); at += kTouched) {
      if (clock_.now() >= end) return false;
      // Equal bytes that are no zeros: sums of them stay numbers, and are never subnormal.
      std::memset(arena.data() + at, 0x3f, std::min(kTouched, arena.size() - at));
    }
    return arena.data() != nullptr;
  }

  // Copies and sums of `bytes` bytes, which fit no cache: of one core, and of several at once. Each
  // core touches its own memory, which is then near it.
  void in_memory(uint64_t bytes, MachineProfile& found) {
    const uint64_t most = room_in_memory() / bytes;
    if (bytes > plan_.bytes_max || most == 0) return;
    const std::size_t helpers = std::min<std::size_t>(
        {others_.size(), static_cast<std::size_t>(plan_.cores_max) - 1, most - 1});
    std::vector<std::unique_ptr<Helper>> busy;
    for (std::size_t i = 0; i < helpers; ++i) {
      busy.push_back(std::make_unique<Helper>(*this, others_[i], bytes));
    }
    const Arena own(bytes, true);
    if (!touch(own, deadline_)) return;
    while (has(busy, Helper::kTouching) && !is_late()) sched_yield();
    std::erase_if(busy, [](const auto& one) { return one->state() != Helper::kReady; });
    found.copy_memory = rate(own, copy);
    found.sum_memory = rate(own, sum);
    if (busy.empty()) return;
    const auto of_all = [&](Work work) {
      for (auto& helper : busy) helper->begin(work);
      while (has(busy, Helper::kReady) && !is_late()) sched_yield();
      const uint64_t each = rate(own, work);
      for (auto& helper : busy) helper->begin(nullptr);
      while (has(busy, Helper::kBusy) && !is_late()) sched_yield();
      return each * (busy.size() + 1);
    };
    found.copy_memory_all = of_all(copy);
    found.sum_memory_all = of_all(sum);
    if (found.copy_memory_all > 0) found.busy_cores = busy.size() + 1;
  }

  // A core that works in an arena of its own until it is stopped. It sleeps between two works.
  class Helper {
   public:
    enum State : int { kTouching, kFailed, kReady, kBusy };

    Helper(const Prober& prober, int cpu, std::size_t bytes)
        : prober_(prober), arena_(bytes, true), thread_(cpu, [this] { run(); }) {
      if (!thread_.has_started()) state_.store(kFailed);
    }
    ~Helper() {
      is_over_.store(true);
      begin(nullptr);
    }
    // Null: stop.
    void begin(Work work) {
      {
        const std::lock_guard lock(mutex_);
        work_.store(work);
      }
      changed_.notify_one();
    }
    int state() const { return state_.load(); }

   private:
    void run() {
      if (!prober_.touch(arena_, prober_.deadline_)) return state_.store(kFailed);
      Walk walk(arena_);
      while (true) {
        if (const Work work = work_.load(); work != nullptr) {
          walk.step(work);
          state_.store(kBusy);
          continue;
        }
        state_.store(kReady);
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [this] { return work_.load() != nullptr || is_over_.load(); });
        if (is_over_.load()) return;
      }
    }

    const Prober& prober_;
    Arena arena_;
    std::mutex mutex_;
    std::condition_variable changed_;
    std::atomic<Work> work_{nullptr};
    std::atomic<int> state_{kTouching};
    std::atomic<bool> is_over_{false};
    PinnedThread thread_;  // the last member: it uses the others
  };

  static bool has(const std::vector<std::unique_ptr<Helper>>& helpers, int state) {
    return is_any_of(helpers, [state](const auto& helper) { return helper->state() == state; });
  }

  // Bytes per microsecond. The quicker half of the samples counts: others were interrupted.
  uint64_t rate(const Arena& arena, Work work) {
    Walk walk(arena);
    // Data that fits a cache is brought there first.
    if (arena.size() <= kMiddleMax) walk.once(work);
    const double ns = sample([&] { walk.step(work); });
    return static_cast<uint64_t>(static_cast<double>(walk.chunk()) * kMicrosecond /
                                 std::max(ns, 1.0));
  }

  // The lower quartile of the time of `work`, in ns.
  double sample(const std::function<void()>& work) {
    samples_.clear();
    const Nanoseconds end = std::min(deadline_, clock_.now() + plan_.slice);
    Nanoseconds before = clock_.now();
    while (samples_.size() < kSamplesMin || before < end) {
      work();
      const Nanoseconds after = clock_.now();
      samples_.push_back(after - before);
      before = after;
    }
    return quartile(samples_);
  }

  // The lower one: longer samples were interrupted.
  static double quartile(std::vector<Nanoseconds>& times) {
    const auto at = times.begin() + static_cast<std::ptrdiff_t>(times.size() / 4);
    std::nth_element(times.begin(), at, times.end());
    return static_cast<double>(*at);
  }

  // Reads this process's own memory, as a peer would.
  void one_copy(const Arena& arena, MachineProfile& found) {
    const std::size_t page_bytes = rdmacoll::page_bytes();
    const std::size_t pages = std::min<std::size_t>(arena.size() / 2 / page_bytes, 64);
    if (pages < 2) return;
    const auto read = [&](std::span<const iovec> from) {
      const iovec to{arena.half(), pages * page_bytes};
      return ::process_vm_readv(::getpid(), &to, 1, from.data(), from.size(), 0) > 0;
    };
    std::vector<iovec> scattered;  // one byte of each page
    for (std::size_t page = 0; page < pages; ++page) {
      scattered.push_back({arena.data() + page * page_bytes, 1});
    }
    const std::vector<iovec> all{{arena.data(), pages * page_bytes}};
    const std::span<const iovec> bytes(scattered);
    if (!read(all) || !read(bytes)) return;
    ReadCosts costs;
    for (int tries = 0; tries < kReadTries && !costs.is_known(); ++tries) {
      ReadTimes times;
      times.one_page = sample([&] { read(bytes.first(1)); });
      times.each_page = sample([&] { read(bytes); });
      times.all_bytes = sample([&] { read(all); });
      costs = costs_of(times, static_cast<double>(pages), static_cast<double>(page_bytes));
    }
    if (!costs.is_known()) return;
    found.one_copy_call_ns = static_cast<uint64_t>(costs.call_ns);
    found.one_copy_page_ns =
        static_cast<uint64_t>(costs.page_ns * kCountedPageBytes / static_cast<double>(page_bytes));
    found.one_copy_rate = static_cast<uint64_t>(costs.bytes_per_us);
  }

  Nanoseconds end_of_pairs() const {
    return std::min(deadline_, clock_.now() + kPairSlices * plan_.slice);
  }

  // Half of the time of a ping-pong.
  uint64_t line() {
    if (second_cpu() < 0 || is_late()) return 0;
    constexpr uint32_t kRounds = 32;  // each sample has so many
    PingPong pair(clock_, end_of_pairs());
    const PinnedThread second(second_cpu(), [&] {
      while (pair.await_ping()) pair.pong();
    });
    bool is_answered = second.has_started() && pair.turn();  // then the second core runs
    const double ns = is_answered ? sample([&] {
      for (uint32_t i = 0; i < kRounds; ++i) is_answered = is_answered && pair.turn();
    })
                                  : 0;
    pair.end();
    return is_answered ? static_cast<uint64_t>(ns / (2 * kRounds) + 0.5) : 0;
  }

  // The processor time of this thread each time that it gives the core away, in a ping-pong on one
  // core. Other work of a busy core runs in between, and does not count. The thread gives the core
  // away once in a round, and more often if the core goes to other work.
  uint64_t switch_between_threads() {
    if (cpu() < 0) return 0;
    constexpr int kRounds = 8;  // the clock is read after so many
    PingPong pair(clock_, end_of_pairs(), true);
    const PinnedThread second(cpu(), [&] {
      while (pair.await_ping()) pair.pong();
    });
    bool is_answered = second.has_started() && pair.turn();
    const Nanoseconds end = std::min(deadline_, clock_.now() + plan_.slice);
    const Nanoseconds before = processor_time();
    const uint64_t yields_before = pair.yields();
    do {
      for (int i = 0; i < kRounds; ++i) is_answered = is_answered && pair.turn();
    } while (is_answered && clock_.now() < end);
    const auto time = static_cast<uint64_t>(processor_time() - before);
    const uint64_t yields = pair.yields() - yields_before;
    pair.end();
    return yields > 0 ? time / yields : 0;
  }
  // This thread's.
  static Nanoseconds processor_time() {
    timespec time{};
    ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return time.tv_sec * kSecond + time.tv_nsec;
  }

  // The rate of copies of what the second core has just written.
  uint64_t peer_copy() {
    const Arena memory(2 * kChunkMax, false);
    if (second_cpu() < 0 || is_late() || !touch(memory)) return 0;
    PingPong pair(clock_, end_of_pairs());
    const PinnedThread second(second_cpu(), [&] {
      for (int turn = 1; pair.await_ping(); ++turn) {
        std::memset(memory.data(), turn, kChunkMax);
        pair.pong();
      }
    });
    std::vector<Nanoseconds> times;
    while (second.has_started() && times.size() < kPeerSamples && pair.turn()) {
      const Nanoseconds before = clock_.now();
      std::memcpy(memory.half(), memory.data(), kChunkMax);
      times.push_back(clock_.now() - before);
    }
    pair.end();
    if (times.size() < kSamplesMin) return 0;
    return static_cast<uint64_t>(kChunkMax * kMicrosecond / std::max(quartile(times), 1.0));
  }

  // From the signal to a thread that sleeps until it runs on the second core.
  uint64_t wake_up() {
    const Fd bell(::eventfd(0, EFD_CLOEXEC));
    if (second_cpu() < 0 || !bell) return 0;
    std::atomic<uint32_t> woken{0};
    const PinnedThread second(second_cpu(), [&] {
      uint64_t count = 0;
      while (::read(bell.get(), &count, sizeof count) == sizeof count) {
        woken.fetch_add(1);
        if (count > 1) return;
      }
    });
    const auto ring = [&](uint64_t count) {
      return ::write(bell.get(), &count, sizeof count) == sizeof count;
    };
    std::vector<Nanoseconds> times;
    constexpr uint32_t kTimes = 100;
    for (uint32_t round = 1; second.has_started() && round <= kTimes && !is_late(); ++round) {
      ::usleep(200);  // the other thread sleeps again, and its core too
      const Nanoseconds before = clock_.now();
      if (!ring(1)) break;
      while (woken.load() < round && !is_late()) continue;
      times.push_back(clock_.now() - before);
    }
    ring(2);
    if (times.empty()) return 0;
    std::nth_element(times.begin(), times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2),
                     times.end());
    return static_cast<uint64_t>(times[times.size() / 2]);
  }

  const MachineFacts& facts_;
  const ProbePlan& plan_;
  const Clock& clock_;
  Nanoseconds deadline_;
  std::vector<int> others_;  // CPUs beside the first one, the nearest first
  std::vector<Nanoseconds> samples_;
};

}  // namespace

MachineProfile measure_machine(const MachineFacts& facts, const ProbePlan& plan) {
  const SteadyClock clock;
  Prober prober(facts, plan, clock.now() + plan.limit, clock);
  MachineProfile found;
  {
    const PinnedThread first(prober.cpu(), [&] { found = prober.measure(); });
  }
  return found;
}

}  // namespace rdmacoll::probe
