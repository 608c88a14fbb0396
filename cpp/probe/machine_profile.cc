#include "probe/machine_profile.h"

#include <algorithm>

#include "base/json_scanner.h"
#include "base/text.h"

namespace rdmacoll::probe {
namespace {

// Grows when the meaning of a field changes. Another version's profile is measured anew.
constexpr uint32_t kVersion = 2;
constexpr std::size_t kBytesMax = 16 << 10;
// A larger number is no measurement. It fits a double without rounding.
constexpr uint64_t kValueMax = uint64_t{1} << 50;

using Profile = MachineProfile;
constexpr ProfileField kFields[] = {
    {"cores", "cores", &Profile::cores, "cores of a process"},
    {"l2_bytes", "bytes", &Profile::l2_bytes, "L2 cache of a core"},
    {"l3_bytes", "bytes", &Profile::l3_bytes, "L3 cache of a core"},
    {"l3_cores", "cores", &Profile::l3_cores, "cores that share an L3 cache"},
    {"copy_l2", "bytes/us", &Profile::copy_l2, "copy in L2"},
    {"copy_l3", "bytes/us", &Profile::copy_l3, "copy in L3"},
    {"copy_memory", "bytes/us", &Profile::copy_memory, "copy in memory"},
    {"copy_memory_all", "bytes/us", &Profile::copy_memory_all, "copy in memory by busy cores"},
    {"sum_l2", "bytes/us", &Profile::sum_l2, "sum of two arrays in L2"},
    {"sum_l3", "bytes/us", &Profile::sum_l3, "sum in L3"},
    {"sum_memory", "bytes/us", &Profile::sum_memory, "sum in memory"},
    {"sum_memory_all", "bytes/us", &Profile::sum_memory_all, "sum in memory by busy cores"},
    {"busy_cores", "cores", &Profile::busy_cores, "busy cores"},
    {"one_copy_call_ns", "ns", &Profile::one_copy_call_ns, "one-copy read: each call"},
    {"one_copy_page_ns", "ns", &Profile::one_copy_page_ns, "one-copy read: each page of 4 KiB"},
    {"one_copy_rate", "bytes/us", &Profile::one_copy_rate, "one-copy read: bytes, in L2"},
    {"peer_copy", "bytes/us", &Profile::peer_copy, "copy of what another core has written"},
    {"line_ns", "ns", &Profile::line_ns, "a cache line from core to core"},
    {"switch_ns", "ns", &Profile::switch_ns, "a core from one waiting thread to the next"},
    {"wake_ns", "ns", &Profile::wake_ns, "wake-up of a sleeping thread"},
};

// The profile of the machine on which NodeMemory's usual figures were calibrated, with both cores
// at one L3. The engine's work is not that of these loops: it takes data out of a peer's cache, and
// moves only one end of most copies to memory. How much it differs is a property of the engine. So
// its figures change by the ratio of two profiles.
MachineProfile usual_profile() {
  MachineProfile usual;
  usual.copy_l2 = 133'000;
  usual.copy_l3 = 63'000;
  usual.copy_memory = 37'500;
  usual.copy_memory_all = 25'500;
  usual.peer_copy = 84'000;
  usual.sum_l2 = 128'000;
  usual.sum_l3 = 62'000;
  usual.sum_memory = 26'200;
  usual.sum_memory_all = 22'000;
  usual.busy_cores = 2;
  usual.one_copy_call_ns = 850;
  usual.one_copy_page_ns = 117;
  usual.one_copy_rate = 35'400;
  usual.line_ns = 49;
  usual.switch_ns = 930;
  return usual;
}
const MachineProfile kUsual = usual_profile();

// The share of the engine's work in caches that moves lines between cores. One end of each copy or
// sum is a rank's own memory, and the other one is shared with peers.
constexpr double kPeersShare = 0.5;
// A message crosses from core to core by so many lines: its place, and its bytes.
constexpr double kLinesOfRound = 2;
constexpr double kLineMost = 0.5;  // us; a longer time was disturbed, or is negative
// No machine of today differs by more. A measurement that does was disturbed.
constexpr double kRatioMax = 32;
// No cache of a core, or of several, is smaller or larger. A file that says so is wrong.
constexpr uint64_t kL2Min = 64 << 10, kL2Max = 64 << 20;
constexpr uint64_t kL3Max = uint64_t{4} << 30;
// Cores hinder each other if their sum is below this share of what they have alone.
constexpr double kHindered = 0.9;

// The greatest or the least number of each field, of the profiles that have it.
MachineProfile extreme_of(std::span<const MachineProfile> profiles,
                          bool (*takes_greatest)(const ProfileField& field)) {
  MachineProfile all;
  for (const MachineProfile& one : profiles) {
    if (all.machine.empty()) all.machine = one.machine;
    for (const ProfileField& field : kFields) {
      uint64_t& extreme = all.*field.value;
      const uint64_t value = one.*field.value;
      const bool is_beyond = takes_greatest(field) ? value > extreme : value < extreme;
      if (value > 0 && (extreme == 0 || is_beyond)) extreme = value;
    }
  }
  return all;
}

}  // namespace

std::span<const ProfileField> profile_fields() { return kFields; }

std::string to_json(const MachineProfile& profile) {
  std::string text = cat("{\"profile\":", kVersion, ",\"machine\":", json_quote(profile.machine));
  for (const ProfileField& field : kFields) {
    text += cat(",", json_quote(field.name), ":", profile.*field.value);
  }
  return text + "}";
}

bool parse_profile(std::string_view text, MachineProfile& profile) {
  profile = MachineProfile{};
  JsonScanner scanner(text.size() <= kBytesMax ? text : std::string_view());
  if (scanner.expect("{\"profile\":").number<uint32_t>() != kVersion) return false;
  profile.machine = scanner.expect(",\"machine\":").text();
  for (const ProfileField& field : kFields) {
    const std::string name = cat(",", json_quote(field.name), ":");
    profile.*field.value = scanner.expect(name).number<uint64_t>();
    if (profile.*field.value > kValueMax) scanner.fail();
  }
  scanner.expect("}");
  if (!scanner.at_end()) profile = MachineProfile{};
  return scanner.at_end();
}

bool MachineProfile::is_complete() const { return cores < 2 || (line_ns > 0 && peer_copy > 0); }

MachineProfile slowest(std::span<const MachineProfile> profiles) {
  return extreme_of(profiles, [](const ProfileField& field) { return field.is_time(); });
}

MachineProfile fastest(std::span<const MachineProfile> profiles) {
  return extreme_of(profiles, [](const ProfileField& field) { return !field.is_time(); });
}

LinkModel with_profile(LinkModel links, const MachineProfile& profile) {
  NodeMemory& memory = links.memory;
  const auto times = [](double value, uint64_t measured, uint64_t usual_number) {
    if (measured == 0 || usual_number == 0) return value;
    const double ratio = static_cast<double>(measured) / static_cast<double>(usual_number);
    return value * std::clamp(ratio, 1 / kRatioMax, kRatioMax);
  };
  const auto scale = [&](double& value, uint64_t Profile::*field) {
    value = times(value, profile.*field, kUsual.*field);
  };
  // The work's time by that of the usual machine: a core's own part, and that of lines of peers.
  // Data is written past the cache where lines of peers take longer than memory (StorePolicy).
  const uint64_t peers =
      profile.peer_copy == 0 ? 0 : std::max(profile.peer_copy, profile.copy_memory);
  const auto scale_cached = [&](double value, uint64_t Profile::*own) {
    return 1 / ((1 - kPeersShare) / times(value, profile.*own, kUsual.*own) +
                kPeersShare / times(value, peers, kUsual.peer_copy));
  };
  const auto scale_rate = [&](MemoryRate& rate, uint64_t Profile::*cached,
                              uint64_t Profile::*shared, uint64_t Profile::*beyond,
                              uint64_t Profile::*all) {
    const double usual_all = rate.beyond * static_cast<double>(kUsual.busy_cores);
    const double usual_cores = rate.beyond_all / rate.beyond;
    scale(rate.shared, shared);
    rate.cached = scale_cached(rate.cached, cached);
    scale(rate.beyond, beyond);
    const auto cores = static_cast<double>(profile.busy_cores);
    const bool is_shared =
        profile.*all > 0 && static_cast<double>(profile.*all) <
                                kHindered * cores * static_cast<double>(profile.*beyond);
    // If several cores hinder each other, their sum is the node's rate. Otherwise more of them do.
    rate.beyond_all = is_shared ? times(usual_all, profile.*all, kUsual.*all)
                                : rate.beyond * std::max(cores, usual_cores);
  };
  if (profile.line_ns > 0) {
    const double more_ns =
        static_cast<double>(profile.line_ns) - static_cast<double>(kUsual.line_ns);
    const double more_us = kLinesOfRound * std::clamp(more_ns / 1e3, -kLineMost, kLineMost);
    memory.round_us += more_us;
    memory.lines_us += more_us;
  }
  memory.line_us = times(memory.line_us, kUsual.peer_copy, peers);
  if (profile.l2_bytes > 0) memory.cache_bytes = std::clamp(profile.l2_bytes, kL2Min, kL2Max);
  // Cores of a virtual machine may have an L3 each, whatever the kernel says. Then this is too
  // little room. It is used for a rank's own data alone, which lies there in any case.
  if (profile.copy_l3 > 0) {
    memory.shared_cache_bytes = std::min(profile.l3_bytes, kL3Max);
    memory.shared_cache_ranks = static_cast<int>(std::clamp<uint64_t>(profile.l3_cores, 1, 1024));
  }
  scale_rate(memory.copy, &Profile::copy_l2, &Profile::copy_l3, &Profile::copy_memory,
             &Profile::copy_memory_all);
  scale_rate(memory.reduce, &Profile::sum_l2, &Profile::sum_l3, &Profile::sum_memory,
             &Profile::sum_memory_all);
  scale(memory.lent_bytes_per_us, &Profile::copy_l2);
  scale(memory.switch_us, &Profile::switch_ns);
  scale(memory.read_call_us, &Profile::one_copy_call_ns);
  scale(memory.read_page_us, &Profile::one_copy_page_ns);
  scale(memory.read_bytes_per_us, &Profile::one_copy_rate);
  return links;
}

}  // namespace rdmacoll::probe
