// The threads of a rank: how many help with sums, and how long callers and threads poll.
#include <unistd.h>

#include <algorithm>

#include "api/session.h"
#include "bootstrap/numa.h"
#include "compute/inline.h"
#include "compute/workers.h"

namespace rdmacoll {
namespace {

// How long a caller polls: slightly longer than a peer takes to answer. A caller that sleeps just
// before the answer also pays for the wake-up.
constexpr Nanoseconds kSpinInNode = 100 * kMicrosecond;
constexpr Nanoseconds kSpinOversubscribed = 50 * kMicrosecond;
constexpr Nanoseconds kSpinBetweenNodes = 300 * kMicrosecond;
// Arming a device's queue takes system calls in addition to the wake-up. So waits within a large
// sum are polled. Callers yield if ranks share cores.
constexpr Nanoseconds kSpinOnNics = 2 * kMillisecond;

// One thread can sum the data of slower links. Workers help once this much data has accumulated.
constexpr double kBytesPerUsOfAThread = 3200;
constexpr std::size_t kAloneOnSlowLinks = 1 << 20;

}  // namespace

std::unique_ptr<Compute> Session::make_compute(int cores, const LinkModel& links) const {
  const int spare = cores - 1;  // the engine thread needs one
  const int workers = config_.compute_workers.value_or(std::clamp(spare, 0, 4));
  if (workers == 0) return std::make_unique<InlineCompute>();
  WorkerLimits limits;
  const bool has_slow_links =
      world_.local_size() < world_.size() && links.network.bytes_per_us < kBytesPerUsOfAThread;
  if (has_slow_links) limits.alone = kAloneOnSlowLinks;
  // The driver is created after the compute, and destroyed before it.
  return std::make_unique<WorkerCompute>(
      workers, [this] { driver_->wake(); }, limits);
}

DriverOptions Session::driver_options(const Oversubscription& oversubscription, int cores) const {
  DriverOptions options;
  // On a single processor, the peer or the kernel can run only when this rank yields.
  options.yield = oversubscription.is_oversubscribed() || sysconf(_SC_NPROCESSORS_ONLN) == 1;
  // If a rank has one core of its own, or the time of one, only its threads compete.
  const bool shares = options.yield || cores == 1;
  if (!fabric_->shares_memory()) {
    options.op_spin = kSpinBetweenNodes;
    options.caller_spin = fabric_->via_nic() ? kSpinOnNics : kSpinBetweenNodes;
  } else {
    options.op_spin = shares ? kSpinOversubscribed : kSpinInNode;
    options.caller_spin = options.yield ? kSpinOversubscribed : kSpinInNode;
  }
  if (shares) options.thread_spin = 0;
  for (const auto& [node, cpus] : read_numa_table(kNumaFolder)) {
    options.numa_nodes.push_back(cpus);
  }
  if (config_.spin_us) {
    options.caller_spin = static_cast<Nanoseconds>(*config_.spin_us * kMicrosecond);
    options.op_spin = options.thread_spin = options.gpu_spin = options.caller_spin;
  }
  return options;
}

}  // namespace rdmacoll
