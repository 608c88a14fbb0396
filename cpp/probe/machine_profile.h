// The costs of copies, sums and signals on a machine, as measured there.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/link_model.h"

namespace rdmacoll::probe {

// Rates are in bytes per microsecond, of one core unless it says otherwise. Times are in
// nanoseconds. 0: not measured, or unknown.
struct MachineProfile {
  std::string machine;    // MachineFacts::key() of the machine
  uint64_t cores = 0;     // a process may use so many
  uint64_t l2_bytes = 0;  // sizes of the caches of one core
  uint64_t l3_bytes = 0;
  uint64_t l3_cores = 0;  // cores that share the L3
  // Copies and sums of two arrays of float32, in a working set that fits L2, that fits L3 and not
  // L2, and that fits no cache. The last ones are of several cores at once, in sum.
  uint64_t copy_l2 = 0, copy_l3 = 0, copy_memory = 0, copy_memory_all = 0;
  uint64_t sum_l2 = 0, sum_l3 = 0, sum_memory = 0, sum_memory_all = 0;
  uint64_t busy_cores = 0;  // how many cores "several" were
  // A one-copy read (process_vm_readv) takes the time of the call, plus that of each page of 4 KiB,
  // plus that of the bytes at this rate.
  uint64_t one_copy_call_ns = 0, one_copy_page_ns = 0, one_copy_rate = 0;
  uint64_t peer_copy = 0;  // copies of data that another core has just written
  uint64_t line_ns = 0;    // from a write of a cache line until another core has read it
  uint64_t switch_ns = 0;  // until a core goes from one thread that waits to the next (sched_yield)
  uint64_t wake_ns = 0;    // from the signal until a sleeping thread runs; `rdmacoll tune` alone

  bool operator==(const MachineProfile&) const = default;
  // Whether it has the numbers for which two cores must run at once, if it has two. A start on a
  // busy machine may have no time for them.
  bool is_complete() const;
};

// A number of a profile. `unit`: "bytes", "cores", "bytes/us" or "ns".
struct ProfileField {
  std::string_view name;
  std::string_view unit;
  uint64_t MachineProfile::*value;
  std::string_view meaning;

  bool is_time() const { return unit == "ns"; }
};
std::span<const ProfileField> profile_fields();

// One line of JSON.
std::string to_json(const MachineProfile& profile);
// Reads exactly what to_json of the same version writes. False: it is something else.
bool parse_profile(std::string_view text, MachineProfile& profile);

// The slowest machine of all: in each field the longest time, or the smallest rate, cache or number
// of cores. A value that a profile lacks does not count.
MachineProfile slowest(std::span<const MachineProfile> profiles);

// One machine, measured several times: in each field the shortest time, or the greatest rate. Other
// programs make a measurement slower, and none quicker.
MachineProfile fastest(std::span<const MachineProfile> profiles);

// `links` with the profile's numbers for the inside of a node. Numbers that the profile lacks stay.
// The network's numbers always stay: they decide between algorithms that add in different orders,
// and equal runs must have equal bits.
LinkModel with_profile(LinkModel links, const MachineProfile& profile);

}  // namespace rdmacoll::probe
