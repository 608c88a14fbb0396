// The measurement of a machine. Its numbers are not judged: they depend on the machine and its
// load.
#include "probe/machine_probe.h"

#include <gtest/gtest.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>

#include <atomic>
#include <ctime>
#include <filesystem>
#include <fstream>

#include "probe/busy_core.h"
#include "probe/machine_facts.h"

namespace rdmacoll::probe {
namespace {

MachineFacts small_machine() {
  MachineFacts facts = read_machine();
  facts.l2_bytes = 256 << 10;
  facts.l3_bytes = 2 << 20;
  return facts;
}

bool is_rate(const ProfileField& field) { return field.unit == "bytes/us"; }
bool needs_second_core(const ProfileField& field) {
  return field.name.ends_with("_all") || field.name == "busy_cores" || field.name == "line_ns" ||
         field.name == "peer_copy";
}

TEST(MachineProbe, measures_every_number_that_decides) {
  const MachineFacts facts = small_machine();
  ProbePlan plan = kProbeAtStart;
  plan.limit = 20 * kSecond;  // a busy machine needs more time
  plan.bytes_max = 64 << 20;
  plan.slice = 50 * kMillisecond;
  MachineProfile found = measure_machine(facts, plan);
  // Other programs may have one of two cores all the time.
  for (int tries = 1; tries < 20 && !found.is_complete(); ++tries) {
    found = measure_machine(facts, plan);
  }
  EXPECT_EQ(found.machine, facts.key());
  for (const ProfileField& field : profile_fields()) {
    const uint64_t value = found.*field.value;
    const bool needs_more = facts.cpus.size() < 2 && needs_second_core(field);
    if (needs_more || field.name == "wake_ns") {
      EXPECT_EQ(value, 0U) << field.name;
    } else if (field.name != "one_copy_page_ns") {
      EXPECT_GT(value, 0U) << field.name;
    }
    if (is_rate(field)) {
      EXPECT_LT(value, 10'000'000U) << field.name;
    }
  }
  MachineProfile again;
  ASSERT_TRUE(parse_profile(to_json(found), again));
  EXPECT_EQ(again, found);
}

// Processor time, since threads wait for a core on a busy machine.
TEST(MachineProbe, keeps_its_limit) {
  const auto processor_time = [] {
    timespec now{};
    ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return now.tv_sec * kSecond + now.tv_nsec;
  };
  for (const Nanoseconds limit : {Nanoseconds{0}, kMillisecond, 50 * kMillisecond}) {
    ProbePlan plan = kProbeAtStart;
    plan.limit = limit;
    const Nanoseconds began = processor_time();
    measure_machine(read_machine(), plan);
    EXPECT_LT(processor_time() - began, 5 * limit + 2 * kSecond);
  }
}

// On a busy machine the time may be over before the first loop.
TEST(MachineProbe, has_the_numbers_of_one_core_without_time_too) {
  ProbePlan plan = kProbeAtStart;
  plan.limit = 0;
  plan.bytes_max = 64 << 20;
  const MachineProfile found = measure_machine(small_machine(), plan);
  for (const uint64_t value : {found.copy_l2, found.sum_l2, found.copy_l3, found.one_copy_rate}) {
    EXPECT_GT(value, 0U);
  }
  EXPECT_EQ(found.copy_memory, 0U);
  EXPECT_EQ(found.sum_memory_all, 0U);
  EXPECT_EQ(found.line_ns, 0U);
}

// Otherwise each switch would take as long as the other work has the core: some milliseconds.
TEST(MachineProbe, does_not_count_other_work_of_a_core_as_its_switches) {
  const MachineFacts facts = small_machine();
  std::atomic<bool> is_over{false};
  uint64_t switch_ns = 0;
  {
    const PinnedThread other(facts.cpus.front(), [&] {
      while (!is_over.load()) continue;
    });
    ASSERT_TRUE(other.has_started());
    switch_ns = measure_machine(facts, kProbeAtStart).switch_ns;
    is_over.store(true);
  }
  EXPECT_GT(switch_ns, 0U);
  EXPECT_LT(switch_ns, 300'000U);
}

TEST(MachineProbe, leaves_out_what_one_core_cannot_tell) {
  MachineFacts facts = small_machine();
  facts.cpus.resize(1);
  ProbePlan plan = kProbeByTune;
  plan.slice = kMillisecond;
  const MachineProfile found = measure_machine(facts, plan);
  for (const ProfileField& field : profile_fields()) {
    if (needs_second_core(field) || field.name == "wake_ns") {
      EXPECT_EQ(found.*field.value, 0U) << field.name;
    }
  }
  EXPECT_GT(found.copy_l2, 0U);
}

TEST(MachineProbe, leaves_out_memory_that_the_plan_or_the_control_group_does_not_grant) {
  MachineFacts facts = small_machine();
  facts.l3_bytes = 300 << 20;
  ProbePlan plan = kProbeAtStart;
  plan.limit = 20 * kSecond;
  plan.bytes_max = 64 << 20;
  const MachineProfile large = measure_machine(facts, plan);
  EXPECT_EQ(large.copy_memory, 0U);
  EXPECT_EQ(large.sum_memory_all, 0U);
  EXPECT_GT(large.copy_l2, 0U);
  facts = small_machine();
  facts.memory_limit = 8 << 20;
  EXPECT_EQ(measure_machine(facts, plan).copy_memory, 0U);
}

TEST(MachineProbe, leaves_the_callers_thread_as_it_was) {
  cpu_set_t before, after;
  sigset_t signals_before, signals_after;
  ASSERT_EQ(sched_getaffinity(0, sizeof before, &before), 0);
  ASSERT_EQ(pthread_sigmask(SIG_SETMASK, nullptr, &signals_before), 0);
  ProbePlan plan = kProbeAtStart;
  plan.limit = 5 * kMillisecond;
  measure_machine(small_machine(), plan);
  ASSERT_EQ(sched_getaffinity(0, sizeof after, &after), 0);
  ASSERT_EQ(pthread_sigmask(SIG_SETMASK, nullptr, &signals_after), 0);
  EXPECT_NE(CPU_EQUAL(&before, &after), 0);
  EXPECT_EQ(sigismember(&signals_before, SIGINT), sigismember(&signals_after, SIGINT));
}

class MachineFolder : public testing::Test {
 protected:
  MachineFolder() {
    std::string pattern = testing::TempDir() + "machine-" + std::string(6, 'X');
    root_ = ::mkdtemp(pattern.data());
    const std::vector<int> cpus = read_machine().cpus;
    cpu_ = "sys/devices/system/cpu/cpu" + std::to_string(cpus.empty() ? 0 : cpus.front());
  }
  ~MachineFolder() override { std::filesystem::remove_all(root_); }
  void write(const std::string& name, const std::string& text) {
    std::filesystem::create_directories((root_ / name).parent_path());
    std::ofstream(root_ / name) << text << "\n";
  }

  std::filesystem::path root_;
  std::string cpu_;
};

TEST_F(MachineFolder, tells_processor_caches_and_control_group) {
  write("proc/cpuinfo",
        "processor\t: 0\nvendor_id\t: X\ncpu family\t: 26\nmodel\t\t: 2\n"
        "model name\t: Example 9 \n\nprocessor\t: 1\nmodel name\t: Other");
  write("proc/self/cgroup", "0::/job");
  write("sys/fs/cgroup/job/cpu.max", "150000 100000");
  write("sys/fs/cgroup/job/memory.max", "1048576");
  write(cpu_ + "/cache/index0/level", "1");
  write(cpu_ + "/cache/index1/level", "2");
  write(cpu_ + "/cache/index1/type", "Instruction");
  write(cpu_ + "/cache/index1/size", "64K");
  write(cpu_ + "/cache/index2/level", "2");
  write(cpu_ + "/cache/index2/type", "Unified");
  write(cpu_ + "/cache/index2/size", "1024K");
  write(cpu_ + "/cache/index3/level", "3");
  write(cpu_ + "/cache/index3/type", "Unified");
  write(cpu_ + "/cache/index3/size", "32M");
  write(cpu_ + "/cache/index3/shared_cpu_list", "0-7");
  write(cpu_ + "/topology/thread_siblings_list", "0,4");
  write("sys/kernel/mm/transparent_hugepage/shmem_enabled", "always [advise] never");
  const MachineFacts facts = read_machine({}, root_);
  EXPECT_EQ(facts.processor, "Example 9, family 26, model 2");
  EXPECT_EQ(facts.quota, 1.5);
  EXPECT_EQ(facts.memory_limit, 1U << 20);
  EXPECT_EQ(facts.l2_bytes, 1U << 20);
  EXPECT_EQ(facts.l3_bytes, 32U << 20);
  EXPECT_EQ(facts.l3_cpus.size(), 8U);
  EXPECT_EQ(facts.siblings, std::vector<int>({0, 4}));
  EXPECT_EQ(facts.shared_huge, "advise");
  EXPECT_NE(facts.key().find("Example 9, family 26, model 2; Linux "), std::string::npos);
  EXPECT_NE(facts.key().find(", time of 1.5"), std::string::npos) << facts.key();
}

// mpirun binds ranks of small jobs to a core each, and the profile is of the machine.
TEST(MachineFacts, count_the_cpus_of_a_bound_process_too) {
  const std::vector<int> before = read_machine().cpus;
  cpu_set_t saved, one;
  ASSERT_EQ(sched_getaffinity(0, sizeof saved, &saved), 0);
  CPU_ZERO(&one);
  CPU_SET(static_cast<std::size_t>(before.front()), &one);
  ASSERT_EQ(sched_setaffinity(0, sizeof one, &one), 0);
  EXPECT_EQ(read_machine().cpus, before);
  cpu_set_t after;
  ASSERT_EQ(sched_getaffinity(0, sizeof after, &after), 0);
  EXPECT_NE(CPU_EQUAL(&one, &after), 0);
  ASSERT_EQ(sched_setaffinity(0, sizeof saved, &saved), 0);
}

TEST_F(MachineFolder, may_be_empty) {
  const MachineFacts facts = read_machine({}, root_);
  EXPECT_EQ(facts.processor, "unknown");
  EXPECT_EQ(facts.quota, 0);
  EXPECT_EQ(facts.l2_bytes + facts.l3_bytes, 0U);
  EXPECT_TRUE(facts.siblings.empty());
  ProbePlan plan = kProbeAtStart;
  plan.limit = 5 * kSecond;
  EXPECT_GT(measure_machine(facts, plan).copy_l2, 0U);
}

}  // namespace
}  // namespace rdmacoll::probe
