// The decision for each case of gpu_policy_cases.txt, and the causes that lose a direct way. Memory
// that is not capable of it is a twelfth one, which gpu_direct_memory_test.cc plants.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "base/text.h"
#include "cuda/policy.h"

namespace rdmacoll::cuda {
namespace {

using ::testing::HasSubstr;

std::vector<std::string> split(const std::string& line, char separator) {
  std::vector<std::string> parts(1);
  for (const char letter : line) {
    if (letter == separator) {
      parts.emplace_back();
    } else {
      parts.back() += letter;
    }
  }
  return parts;
}

using Row = std::map<std::string, std::string>;

std::vector<Row> rows() {
  std::ifstream stream(RC_TEST_DATA "/gpu_policy_cases.txt");
  std::vector<Row> found;
  std::vector<std::string> names;
  for (std::string line; std::getline(stream, line);) {
    if (line.empty() || line.front() == '#') continue;
    const std::vector<std::string> parts = split(line, '|');
    if (names.empty()) {
      names = parts;
      continue;
    }
    EXPECT_EQ(parts.size(), names.size()) << line;
    Row row;
    for (std::size_t i = 0; i < parts.size(); ++i) row[names[i]] = parts[i];
    found.push_back(std::move(row));
  }
  return found;
}

Known known(const std::string& word) {
  return word == "y" ? Known::yes : word == "n" ? Known::no : Known::unknown;
}

Distance distance_of(const std::string& word) {
  for (const Distance each :
       {Distance::pix, Distance::pxb, Distance::phb, Distance::node, Distance::sys}) {
    if (word == text(each)) return each;
  }
  return Distance::unknown;
}

PolicyFacts facts_of(Row row) {
  PolicyFacts facts;
  facts.gpu.name = row["gpu"];
  facts.gpu.uuid = cat("GPU-", row["machine"]);
  facts.gpu.capability = std::stoi(row["capability"]);
  facts.gpu.has_nvlink = row["nvlink"] == "1";
  facts.gpu.is_mig = row["mig"] == "y";
  facts.gpu.bar1_bytes = std::stoull(row["bar1_mib"]) << 20;
  facts.gpu.gpudirect = known(row["gpudirect"]);
  facts.gpu.dma_buf = known(row["dma_buf"]);
  if (!row["ordering"].empty()) facts.gpu.writes_ordering = std::stoi(row["ordering"]);
  if (!row["flush_options"].empty()) facts.gpu.flush_options = std::stoi(row["flush_options"]);
  facts.nic = row["nic"];
  facts.nic_is_software = row["software"] == "y";
  facts.ability = {known(row["nic_peer_memory"]), known(row["nic_dma_buf"])};
  facts.way.distance = distance_of(row["distance"]);
  facts.way.is_flat = row["flat"] == "y";
  facts.way.redirects = known(row["acs"]);
  facts.way.is_translated = known(row["iommu"]);
  facts.host.sys_is_readable = row["sys"] == "y";
  facts.host.peer_module = known(row["module"]);
  facts.host.driver_major = std::stoi(row["driver"]);
  facts.setting = gpudirect_from(row["setting"]).value();
  facts.nearer_nic = row["nearer"];
  return facts;
}

// "dma_buf", "staged:acs"
std::string shown(const DirectionDecision& one) {
  if (one.cause == Cause::none) return std::string(text(one.way));
  return cat(text(one.way), ":", text(one.cause));
}

TEST(GpuPolicy, decides_every_case_with_its_sentence) {
  const std::vector<Row> all = rows();
  ASSERT_GE(all.size(), 200U);
  for (Row row : all) {
    SCOPED_TRACE(cat(row["machine"], ", module ", row["module"], ", driver ", row["driver"],
                     ", setting ", row["setting"]));
    const Decision decision = decide(facts_of(row));
    EXPECT_EQ(shown(decision.send), row["send"]);
    EXPECT_EQ(shown(decision.receive), row["receive"]);
    EXPECT_EQ(text(decision.flush), row["flush"]);
    EXPECT_EQ(decision.send.reason(), row["send_sentence"]);
    EXPECT_EQ(decision.receive.reason(), row["receive_sentence"]);
    EXPECT_EQ(decision.warning, row["warning"]);
    EXPECT_EQ(decision.status.ok() ? "" : decision.status.message(), row["error"]);
  }
}

// A line "# machine: source", or "# machine: made up: ...".
TEST(GpuPolicy, has_200_cases_of_machines_with_a_source) {
  std::map<std::string, bool> has_source;
  std::ifstream stream(RC_TEST_DATA "/gpu_policy_cases.txt");
  for (std::string line; std::getline(stream, line);) {
    const std::size_t end = line.find(": ");
    if (!line.starts_with("# ") || end == line.npos) continue;
    const std::string_view text = std::string_view(line).substr(end + 2);
    has_source[line.substr(2, end - 2)] = !text.starts_with("made up: ");
  }
  int cited = 0;
  for (Row row : rows()) {
    ASSERT_TRUE(has_source.contains(row["machine"])) << row["machine"];
    cited += has_source[row["machine"]] ? 1 : 0;
  }
  EXPECT_GE(cited, 200);
}

TEST(GpuPolicy, says_for_each_staged_direction_what_would_change_it) {
  for (const Row& row : rows()) {
    const Decision decision = decide(facts_of(row));
    for (const DirectionDecision& one : {decision.send, decision.receive}) {
      EXPECT_EQ(one.way == Way::staged, one.cause != Cause::none);
      EXPECT_EQ(one.change.empty(), one.way != Way::staged);
      EXPECT_FALSE(one.is_loss && one.way != Way::staged);
      EXPECT_THAT(decision.warning, HasSubstr(one.is_loss ? one.why : ""));
    }
    EXPECT_EQ(decision.status.code(), row.at("error").empty() ? Code::ok : Code::invalid);
  }
}

// A machine with a direct way in both directions.
PolicyFacts sound() {
  PolicyFacts facts;
  facts.gpu = {.name = "NVIDIA A100-SXM4-40GB",
               .uuid = "GPU-1",
               .address = "0000:07:00.0",
               .capability = 80,
               .memory_bytes = 40ULL << 30,
               .bar1_bytes = 64ULL << 30,
               .bar1_free = 63ULL << 30,
               .gpudirect = Known::yes,
               .dma_buf = Known::no,
               .writes_ordering = 100,
               .flush_options = 1};
  facts.nic = "mlx5_0";
  facts.ability = ability_of("mlx5_core", 5, 15);
  facts.way.distance = Distance::pxb;
  facts.way.redirects = facts.way.is_translated = Known::no;
  facts.host = {.peer_module = Known::yes, .driver_major = 535};
  return facts;
}

struct Planted {
  Cause cause;
  void (*plant)(PolicyFacts& facts);
  const char* words;  // in the warning
};

const Planted kPlanted[] = {
    {Cause::module_missing,
     [](PolicyFacts& facts) {
       facts.host.peer_module = Known::no;
       facts.gpu.capability = 70;  // a Tesla V100 has no dma-buf
       facts.gpu.has_nvlink = true;
     },
     "nvidia_peermem is not loaded. Load it with \"modprobe nvidia_peermem\""},
    {Cause::bar1_too_small, [](PolicyFacts& facts) { facts.gpu.bar1_free = 100 << 20; },
     "BAR1 has 100 MiB free, and 256 MiB are to be registered. Turn on above-4G decoding"},
    {Cause::far_socket, [](PolicyFacts& facts) { facts.way.distance = Distance::sys; },
     "at different sockets (SYS). Put the NIC into a slot at the GPU's socket."},
    {Cause::acs, [](PolicyFacts& facts) { facts.way.redirects = Known::yes; },
     "ACS of their PCIe switch"},
    {Cause::iommu, [](PolicyFacts& facts) { facts.way.is_translated = Known::yes; },
     "an IOMMU translates addresses, which the peer-memory module does not know. Boot with "
     "iommu=pt"},
    {Cause::no_sys,
     [](PolicyFacts& facts) {
       facts.way = {};
       facts.host.sys_is_readable = false;
     },
     "this container shows no PCIe tree in /sys"},
    {Cause::mig,
     [](PolicyFacts& facts) {
       facts.gpu.is_mig = true;
       facts.gpu.gpudirect = Known::no;
     },
     "divided by MIG"},
    {Cause::old_driver,
     [](PolicyFacts& facts) { facts.host = {.peer_module = Known::no, .driver_major = 450}; },
     "driver 450 has no nvidia_peermem"},
    {Cause::no_dma_buf, [](PolicyFacts& facts) { facts.host.peer_module = Known::no; },
     "exports no dma-buf, and nvidia_peermem is not loaded. Install NVIDIA's open kernel modules"},
    {Cause::turned_off,
     [](PolicyFacts& facts) {
       facts.setting = {GpuDirectMode::off, GpuDirectMode::off};
     },
     "RDMACOLL_GPUDIRECT=off turns the direct way off"},
    {Cause::nic_unsupported, [](PolicyFacts& facts) { facts.ability = ability_of("cxgb4", 6, 1); },
     "the driver of mlx5_0 registers no GPU memory"},
};

TEST(GpuPolicy, warns_of_each_planted_cause_by_its_name) {
  const Decision before = decide(sound());
  EXPECT_EQ(shown(before.send), "peer_memory");
  EXPECT_EQ(shown(before.receive), "peer_memory");
  EXPECT_EQ(before.warning, "");
  std::set<Cause> causes;
  int silent = 0;
  for (const Planted& planted : kPlanted) {
    PolicyFacts facts = sound();
    planted.plant(facts);
    const Decision decision = decide(facts);
    SCOPED_TRACE(text(planted.cause));
    for (const DirectionDecision& one : {decision.send, decision.receive}) {
      EXPECT_EQ(one.way, Way::staged);
      EXPECT_EQ(one.cause, planted.cause);
    }
    silent += decision.warning.empty() ? 1 : 0;
    EXPECT_THAT(decision.warning,
                HasSubstr("mlx5_0 does not read and write the memory of NVIDIA A100-SXM4-40GB "
                          "(GPU-1) itself, because "));
    EXPECT_THAT(decision.warning, HasSubstr(planted.words));
    causes.insert(planted.cause);
    // A nearer NIC carries the data, so nothing is lost at this one.
    facts.nearer_nic = "mlx5_1";
    EXPECT_EQ(decide(facts).warning, "");
  }
  EXPECT_EQ(silent, 0);
  EXPECT_EQ(causes.size(), 11U);
}

TEST(GpuPolicy, needs_a_part_of_bar1_that_the_driver_has_not_reserved) {
  PolicyFacts facts = sound();
  facts.gpu.bar1_bytes = facts.gpu.bar1_free = 256 << 20;
  EXPECT_EQ(decide(facts).receive.cause, Cause::bar1_too_small);
  EXPECT_THAT(decide(facts).receive.why, HasSubstr("BAR1 has 224 MiB free"));
  facts.registered_bytes = 224 << 20;
  EXPECT_EQ(decide(facts).receive.way, Way::peer_memory);
  facts.gpu.bar1_bytes = facts.gpu.bar1_free = 16 << 20;
  EXPECT_EQ(decide(facts).receive.cause, Cause::bar1_too_small);
  facts.gpu.bar1_bytes = facts.gpu.bar1_free = {};  // not known
  EXPECT_EQ(decide(facts).receive.cause, Cause::bar1_unknown) << "registrations guess no size";
  EXPECT_THAT(decide(facts).warning, HasSubstr("Give this process libnvidia-ml.so.1"));
}

TEST(GpuPolicy, warns_of_a_nic_that_the_job_uses_even_if_another_one_is_nearer) {
  PolicyFacts facts = sound();
  facts.way.distance = Distance::sys;
  facts.nearer_nic = "mlx5_1";
  EXPECT_EQ(decide(facts).warning, "");
  facts.is_used = true;
  EXPECT_THAT(decide(facts).warning, HasSubstr("Use mlx5_1, which is nearer"));
  facts.setting = {GpuDirectMode::off, GpuDirectMode::off};
  facts.way.distance = Distance::pix;
  EXPECT_THAT(decide(facts).warning, HasSubstr("turns the direct way off"));
}

TEST(GpuPolicy, names_an_unknown_capability) {
  PolicyFacts facts = sound();
  facts.gpu.capability = 0;
  const Decision decision = decide(facts);
  EXPECT_EQ(decision.receive.way, Way::peer_memory);
  EXPECT_THAT(decision.send.reason(), HasSubstr("the GPU's capability is not known"));
}

TEST(GpuPolicy, does_not_take_the_unknown_for_absent) {
  PolicyFacts facts = sound();
  facts.host.peer_module = Known::unknown;
  EXPECT_EQ(decide(facts).receive.cause, Cause::no_sys);
  EXPECT_THAT(decide(facts).warning, HasSubstr("/proc/modules cannot be read here"));
  facts.host.peer_module = Known::no;
  facts.gpu.dma_buf = Known::unknown;
  EXPECT_EQ(decide(facts).receive.cause, Cause::no_dma_buf);
  EXPECT_THAT(decide(facts).warning, HasSubstr("does not tell whether there is dma-buf"));
}

TEST(GpuPolicy, never_uses_dma_buf_with_a_kepler_board_or_an_old_driver) {
  PolicyFacts facts = sound();
  facts.gpu.dma_buf = Known::yes;
  EXPECT_EQ(decide(facts).receive.way, Way::dma_buf);
  facts.gpu.capability = 37;
  EXPECT_EQ(decide(facts).receive.way, Way::peer_memory);
  facts.gpu.capability = 80;
  facts.host.driver_major = 470;
  EXPECT_EQ(decide(facts).receive.way, Way::peer_memory);
}

TEST(GpuPolicy, flushes_by_the_attributes_and_otherwise_below_capability_9) {
  struct Case {
    int capability;
    std::optional<int> ordering;
    std::optional<int> options;
    WriteFlush expected;
  };
  for (const Case& each : {Case{80, {}, {}, WriteFlush::read}, Case{80, {}, 1, WriteFlush::call},
                           Case{80, {}, 2, WriteFlush::read}, Case{90, {}, {}, WriteFlush::none},
                           Case{90, 0, 1, WriteFlush::call}, Case{80, 100, 1, WriteFlush::none},
                           Case{80, 200, 0, WriteFlush::none}, Case{90, 0, 0, WriteFlush::read}}) {
    PolicyFacts facts = sound();
    facts.gpu.capability = each.capability;
    facts.gpu.writes_ordering = each.ordering;
    facts.gpu.flush_options = each.options;
    EXPECT_EQ(decide(facts).flush, each.expected)
        << each.capability << " " << each.ordering.value_or(-1);
    facts.setting.receive = GpuDirectMode::off;
    EXPECT_EQ(decide(facts).flush, WriteFlush::none) << "nothing is written by a NIC";
  }
}

TEST(GpuPolicy, knows_which_drivers_of_nics_take_gpu_memory) {
  EXPECT_EQ(ability_of("mlx5_core", 5, 12).dma_buf, Known::yes);
  EXPECT_EQ(ability_of("mlx5_core", 5, 11).dma_buf, Known::no);
  EXPECT_EQ(ability_of("mlx5_core", 4, 18).dma_buf, Known::no);
  EXPECT_EQ(ability_of("mlx5_core", 6, 1).peer_memory, Known::yes);
  EXPECT_EQ(ability_of("mlx5_core", 0, 0).dma_buf, Known::unknown);
  EXPECT_EQ(ability_of("mlx4_core", 6, 1).dma_buf, Known::no);
  EXPECT_EQ(ability_of("efa", 6, 1).peer_memory, Known::no);
  EXPECT_EQ(ability_of("cxgb4", 6, 1).peer_memory, Known::no);
  EXPECT_EQ(ability_of("a_new_driver", 6, 1).dma_buf, Known::unknown);
}

}  // namespace
}  // namespace rdmacoll::cuda
