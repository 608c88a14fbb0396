// The profile of a machine as a value: its text, and the slowest and the fastest of several.
#include "probe/machine_profile.h"

#include <gtest/gtest.h>

#include <set>

#include "collectives/node_cost.h"
#include "collectives/schedule.h"

namespace rdmacoll::probe {
namespace {

MachineProfile numbered(uint64_t first) {
  MachineProfile profile{.machine = "Example \"9\"; Linux 6"};
  for (const ProfileField& field : profile_fields()) profile.*field.value = first++;
  return profile;
}

TEST(MachineProfile, has_each_field_once) {
  std::set<std::string_view> names;
  std::set<uint64_t> values;
  const MachineProfile profile = numbered(1);
  for (const ProfileField& field : profile_fields()) {
    names.insert(field.name);
    values.insert(profile.*field.value);
  }
  EXPECT_EQ(names.size(), profile_fields().size());
  EXPECT_EQ(values.size(), profile_fields().size());
  // A field without a row would be lost in the text.
  EXPECT_EQ(sizeof(MachineProfile), sizeof(std::string) + profile_fields().size() * 8);
}

TEST(MachineProfile, comes_back_from_its_text) {
  MachineProfile again;
  ASSERT_TRUE(parse_profile(to_json(numbered(7)), again));
  EXPECT_EQ(again, numbered(7));
}

TEST(MachineProfile, is_refused_when_its_text_is_damaged) {
  const std::string text = to_json(numbered(7));
  MachineProfile found = numbered(1);
  for (std::size_t bytes = 0; bytes < text.size(); ++bytes) {
    EXPECT_FALSE(parse_profile(text.substr(0, bytes), found)) << bytes;
    EXPECT_EQ(found, MachineProfile{});
  }
  EXPECT_FALSE(parse_profile(text + " ", found));
  for (const auto& [part, other] : {std::pair{"\"profile\":2", "\"profile\":3"},
                                    {"\"line_ns\":", "\"line_ns\":-"},
                                    {"\"line_ns\":", "\"line_ns\":99999999999999999999"},
                                    {"\"line_ns\":", "\"line_ns\":9999999999999999"},
                                    {"\"line_ns\":", "\"other_ns\":"}}) {
    std::string changed = text;
    const std::size_t at = changed.find(part);
    ASSERT_NE(at, changed.npos) << part;
    EXPECT_FALSE(parse_profile(changed.replace(at, std::string(part).size(), other), found))
        << other;
  }
  EXPECT_FALSE(parse_profile(std::string(1 << 20, '{'), found));
}

TEST(SlowestProfile, has_the_slowest_number_of_each_kind) {
  const MachineProfile all = slowest(std::vector{numbered(100), numbered(50), MachineProfile{}});
  for (const ProfileField& field : profile_fields()) {
    const MachineProfile expected = numbered(field.unit == "ns" ? 100 : 50);
    EXPECT_EQ(all.*field.value, expected.*field.value) << field.name;
  }
  EXPECT_EQ(slowest({}), MachineProfile{});
}

TEST(FastestProfile, has_the_fastest_number_of_each_kind) {
  const MachineProfile all = fastest(std::vector{MachineProfile{}, numbered(100), numbered(50)});
  EXPECT_EQ(all.machine, numbered(1).machine);
  for (const ProfileField& field : profile_fields()) {
    const MachineProfile expected = numbered(field.unit == "ns" ? 50 : 100);
    EXPECT_EQ(all.*field.value, expected.*field.value) << field.name;
  }
}

TEST(MachineProfile, is_complete_with_what_its_cores_can_tell) {
  MachineProfile profile{.cores = 1};
  EXPECT_TRUE(profile.is_complete());
  profile.cores = 2;
  EXPECT_FALSE(profile.is_complete());
  profile.line_ns = 60;
  EXPECT_FALSE(profile.is_complete());
  profile.peer_copy = 1000;
  EXPECT_TRUE(profile.is_complete());
}

LinkModel socket_links() { return usual_links(false); }

TEST(LinksWithProfile, stay_as_usual_without_one) {
  EXPECT_EQ(with_profile(socket_links(), {}).memory, NodeMemory{});
}

// Equal runs have equal bits, and between nodes the choice decides the order of additions.
TEST(LinksWithProfile, have_the_usual_network) {
  for (const uint64_t first : {1, 1000, 1'000'000}) {
    for (const bool via_nic : {false, true}) {
      LinkModel links = with_profile(usual_links(via_nic, 40), numbered(first));
      EXPECT_NE(links.memory, NodeMemory{});
      links.memory = {};
      const LinkModel usual = usual_links(via_nic, 40);
      EXPECT_EQ(links.node, usual.node);
      EXPECT_EQ(links.network, usual.network);
      EXPECT_EQ(links.rack_nodes, usual.rack_nodes);
      EXPECT_EQ(links.uplink_bytes_per_us, usual.uplink_bytes_per_us);
      EXPECT_EQ(links.eager_bytes, usual.eager_bytes);
      EXPECT_EQ(links.via_nic, usual.via_nic);
      EXPECT_EQ(links.step_us, usual.step_us);
      EXPECT_EQ(links.copy_bytes_per_us, usual.copy_bytes_per_us);
      EXPECT_EQ(links.reduce_bytes_per_us, usual.reduce_bytes_per_us);
    }
  }
}

TEST(LinksWithProfile, are_twice_as_slow_on_a_machine_that_is) {
  const auto links_of = [](uint64_t rate, uint64_t ns) {
    MachineProfile profile{.machine = "Example"};
    for (const ProfileField& field : profile_fields()) {
      profile.*field.value = field.unit == "ns" ? ns : rate;
    }
    profile.busy_cores = 2;
    profile.copy_memory_all = profile.sum_memory_all = 2 * rate;
    profile.l2_bytes = 2 << 20;
    profile.peer_copy = 2 * rate;
    return with_profile(socket_links(), profile).memory;
  };
  const NodeMemory fast = links_of(40'000, 200), slow = links_of(20'000, 400);
  EXPECT_EQ(fast.cache_bytes, 2U << 20);
  EXPECT_DOUBLE_EQ(slow.round_us, fast.round_us + 0.4);  // two lines
  EXPECT_DOUBLE_EQ(slow.lines_us, fast.lines_us + 0.4);
  EXPECT_DOUBLE_EQ(slow.read_call_us, 2 * fast.read_call_us);
  EXPECT_DOUBLE_EQ(slow.switch_us, 2 * fast.switch_us);
  EXPECT_DOUBLE_EQ(slow.read_page_us, 2 * fast.read_page_us);
  EXPECT_DOUBLE_EQ(2 * slow.read_bytes_per_us, fast.read_bytes_per_us);
  for (const auto& [less, more] : {std::pair{slow.copy, fast.copy}, {slow.reduce, fast.reduce}}) {
    EXPECT_DOUBLE_EQ(2 * less.cached, more.cached);
    EXPECT_DOUBLE_EQ(2 * less.shared, more.shared);
    EXPECT_DOUBLE_EQ(2 * less.beyond, more.beyond);
    EXPECT_DOUBLE_EQ(2 * less.beyond_all, more.beyond_all);
  }
}

// Ranks that share cores take turns.
TEST(NodeMemoryOnCores, is_slower_for_more_ranks_than_cores) {
  NodeMemory memory;
  EXPECT_EQ(memory.on_cores(64), memory);  // each has a core
  memory.cores = 8;
  EXPECT_EQ(memory.on_cores(8), NodeMemory{});
  const NodeMemory shared = memory.on_cores(24);
  // Two others have their turn, and twice until the owner of a view knows that it was read.
  EXPECT_DOUBLE_EQ(shared.round_us_of(4096), 2 * memory.switch_us);
  EXPECT_DOUBLE_EQ(shared.round_us_of(8192), memory.round_us + 4 * memory.switch_us);
  EXPECT_DOUBLE_EQ(memory.round_us_of(4096), memory.round_us);
  EXPECT_DOUBLE_EQ(memory.round_us_of(8192), memory.round_us);
  EXPECT_DOUBLE_EQ(shared.step_us, 3 * memory.step_us);
  // A half of the work on a message at each end. Two of 23 peers are on the same core.
  const double work_us = (memory.round_us - 25.0 / 23 / 2 * memory.lines_us) / 2;
  EXPECT_DOUBLE_EQ(shared.message_us, 3 * (memory.message_us + work_us));
  EXPECT_DOUBLE_EQ(shared.view_us, 3 * memory.view_us);
  EXPECT_DOUBLE_EQ(shared.copy.cached, memory.copy.cached / 3);
  EXPECT_DOUBLE_EQ(shared.reduce.beyond, memory.reduce.beyond / 3);
  EXPECT_DOUBLE_EQ(shared.copy.beyond_all, memory.copy.beyond_all);
  EXPECT_EQ(shared.on_cores(24), shared);
  // They also share the core's cache.
  EXPECT_EQ(memory_of_each(memory, 8).cache_bytes, memory.cache_bytes);
  EXPECT_EQ(memory_of_each(memory, 24).cache_bytes, memory.cache_bytes / 3);
  // ... and that of several cores.
  memory.shared_cache_ranks = 4;
  EXPECT_EQ(memory_of_each(memory, 8).shared_cache_ranks, 4);
  EXPECT_EQ(memory_of_each(memory, 24).shared_cache_ranks, 12);
  memory.cores = 0;
  EXPECT_EQ(memory_of_each(memory, 24), memory);
  // A quota below one core.
  memory.cores = 0.25;
  EXPECT_DOUBLE_EQ(memory.on_cores(2).message_us,
                   8 * (memory.message_us + (memory.round_us - memory.lines_us) / 2));
  EXPECT_DOUBLE_EQ(memory.on_cores(1).turns_us, 3 * memory.switch_us);
}

// Segments in flight are in the pool at the same time, so all of them have to fit a rank's cache.
TEST(NodeCostOfPools, grows_if_the_segments_in_flight_leave_the_cache) {
  const NodeMemory memory;
  const auto us = [&](uint64_t segment) {
    return NodeCost(memory, 2, 2, 64 << 20, static_cast<double>(segment))
        .copy_us(64 << 10, DataLocation::pool, DataLocation::pool);
  };
  const uint64_t fits = memory.cache_bytes / kSegmentsInFlight;
  EXPECT_DOUBLE_EQ(us(fits / 2), us(fits));
  EXPECT_GT(us(2 * fits), us(fits));
  EXPECT_GT(us(4 * fits), us(2 * fits));
}

TEST(LinksWithProfile, share_memory_if_busy_cores_hinder_each_other) {
  const NodeMemory usual;
  MachineProfile profile{.copy_memory = 40'000, .copy_memory_all = 80'000, .busy_cores = 2};
  const auto copy = [&] { return with_profile(socket_links(), profile).memory.copy; };
  // They do not: the node's rate is unknown, and as many times that of a core as usual.
  EXPECT_DOUBLE_EQ(copy().beyond_all / copy().beyond, usual.copy.beyond_all / usual.copy.beyond);
  profile.busy_cores = 64;
  profile.copy_memory_all = 64 * 40'000;
  EXPECT_DOUBLE_EQ(copy().beyond_all / copy().beyond, 64);
  // They do: the node's rate is theirs.
  profile.busy_cores = 2;
  profile.copy_memory_all = 30'000;
  const double all = copy().beyond_all;
  EXPECT_LT(copy().shared_by(4), copy().beyond);
  profile.copy_memory_all = 15'000;
  EXPECT_DOUBLE_EQ(copy().beyond_all, all / 2);
  EXPECT_LT(copy().shared_by(2), copy().beyond);
  profile.copy_memory_all = profile.busy_cores = 0;
  EXPECT_DOUBLE_EQ(copy().beyond_all / copy().beyond, usual.copy.beyond_all / usual.copy.beyond);
}

TEST(LinksWithProfile, are_slower_in_caches_if_lines_move_slowly_between_cores) {
  const auto memory = [](uint64_t rate) {
    return with_profile(socket_links(), {.peer_copy = rate}).memory;
  };
  const NodeMemory near = memory(80'000), far = memory(40'000);
  EXPECT_DOUBLE_EQ(far.line_us, 2 * near.line_us);
  for (const auto& [less, more] : {std::pair{far.copy, near.copy}, {far.reduce, near.reduce}}) {
    EXPECT_LT(less.cached, more.cached);
    EXPECT_GT(2 * less.cached, more.cached);  // a part of the work is a core's own
    EXPECT_EQ(less.beyond, more.beyond);
  }
}

// A slow core and slow lines each have their part of the time, and one does not slow the other.
TEST(LinksWithProfile, add_the_times_of_own_lines_and_those_of_peers) {
  const auto time = [](uint64_t own, uint64_t peers) {
    const MachineProfile profile{.copy_l2 = own, .peer_copy = peers};
    return 1 / with_profile(socket_links(), profile).memory.copy.cached;
  };
  const double usual = time(133'000, 84'000);
  EXPECT_DOUBLE_EQ(usual, 1 / NodeMemory{}.copy.cached);
  const double slow_core = time(66'500, 84'000) - usual;
  const double slow_lines = time(133'000, 21'000) - usual;
  EXPECT_NEAR(time(66'500, 21'000), usual + slow_core + slow_lines, 1e-12);
  EXPECT_NEAR(slow_core + slow_lines / 3, usual, 1e-12);  // twice and four times the time
}

// Own data lies in the L3, also where a virtual machine's cores have an L3 each.
TEST(LinksWithProfile, have_a_shared_cache_if_its_rate_is_known) {
  MachineProfile profile{.l3_bytes = 32 << 20, .l3_cores = 8};
  const auto memory = [&] { return with_profile(socket_links(), profile).memory; };
  EXPECT_EQ(memory().shared_cache_bytes, 0U);  // unknown
  profile.copy_l3 = 63'000;
  for (const uint64_t near : {84'000, 36'000}) {
    profile.peer_copy = near;
    EXPECT_EQ(memory().shared_cache_bytes, 32U << 20);
    EXPECT_EQ(memory().shared_cache_ranks, 8);
    EXPECT_GT(memory().copy.shared, memory().copy.beyond);
  }
}

TEST(LinksWithProfile, are_bounded_when_a_measurement_was_disturbed) {
  MachineProfile profile{.copy_l2 = 1, .line_ns = uint64_t{1} << 50};
  const NodeMemory memory = with_profile(socket_links(), profile).memory;
  const NodeMemory usual;
  EXPECT_GE(memory.copy.cached, usual.copy.cached / 100);
  EXPECT_LE(memory.round_us, usual.round_us + 1);
}

TEST(LinksWithProfile, are_bounded_when_a_file_names_impossible_caches) {
  MachineProfile wrong;
  wrong.copy_l3 = 1;
  wrong.peer_copy = 1 << 20;
  wrong.l2_bytes = wrong.l3_bytes = uint64_t{1} << 50;
  const NodeMemory large = with_profile(LinkModel{}, wrong).memory;
  EXPECT_EQ(large.cache_bytes, 64u << 20);
  EXPECT_EQ(large.shared_cache_bytes, uint64_t{4} << 30);
  wrong.l2_bytes = 1;
  EXPECT_EQ(with_profile(LinkModel{}, wrong).memory.cache_bytes, 64u << 10);
}

}  // namespace
}  // namespace rdmacoll::probe
