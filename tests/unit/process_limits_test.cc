// The largest buffer pool that limits allow.
#include "memory/process_limits.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <utility>

#include "api/quota_share.h"
#include "base/cgroup.h"
#include "base/text.h"
#include "own_path.h"

namespace rdmacoll {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr uint64_t kMiB = uint64_t{1} << 20, kGiB = uint64_t{1} << 30;

struct Fitted {
  Status status;
  uint64_t bytes = 0;
  std::string note;
};

Fitted fit(const PoolRequest& request, const ProcessLimits& limits) {
  Fitted fitted;
  fitted.status = fit_pool(request, limits, fitted.bytes, fitted.note);
  return fitted;
}

ProcessLimits address_space(uint64_t limit, uint64_t used) {
  return {.address_limit = limit, .address_used = used};
}

ProcessLimits group(uint64_t limit) {
  return {.group_limit = limit, .group_file = "/sys/fs/cgroup/memory.max"};
}

TEST(Room, without_limits_changes_nothing) {
  for (const bool is_given : {false, true}) {
    const Fitted fitted = fit({64 * kGiB, is_given, 8}, {});
    EXPECT_TRUE(fitted.status.ok());
    EXPECT_EQ(fitted.bytes, 64 * kGiB);
    EXPECT_EQ(fitted.note, "");
  }
}

TEST(Room, makes_a_default_pool_smaller_and_says_which_limit) {
  const Fitted mapped = fit({kGiB, false, 2}, address_space(2500 * kMiB, 300 * kMiB));
  EXPECT_TRUE(mapped.status.ok());
  EXPECT_EQ(mapped.bytes, 275 * kMiB);  // 2200 MiB / 2 for pools / 2 mappings / 2 ranks
  EXPECT_THAT(mapped.note, AllOf(HasSubstr("has 275 MiB instead of 1 GiB"),
                                 HasSubstr("may map 2200 MiB more (RLIMIT_AS is 2500 MiB)"),
                                 HasSubstr("`ulimit -v unlimited`")));
  const Fitted grouped = fit({kGiB, false, 2}, group(512 * kMiB));
  EXPECT_TRUE(grouped.status.ok());
  EXPECT_EQ(grouped.bytes, 128 * kMiB);
  EXPECT_THAT(grouped.note, AllOf(HasSubstr("may use 512 MiB (/sys/fs/cgroup/memory.max)"),
                                  HasSubstr("--memory")));
  EXPECT_EQ(fit({kGiB, false, 2}, group(kGiB)).bytes, kGiB);
}

TEST(Room, refuses_what_was_asked_for_with_limit_need_and_cure) {
  const Fitted mapped = fit({2 * kGiB, true, 2}, address_space(2500 * kMiB, 300 * kMiB));
  EXPECT_EQ(mapped.status.code(), Code::invalid);
  EXPECT_THAT(mapped.status.message(),
              AllOf(HasSubstr("RDMACOLL_BUF_SIZE (TF_RDMA_BUF_SIZE) asks for 2 GiB"),
                    HasSubstr("RLIMIT_AS is 2500 MiB"),
                    HasSubstr("Lower RDMACOLL_BUF_SIZE to 275 MiB, leave it unset, or raise")));
  const Fitted grouped = fit({kGiB, true, 2}, group(512 * kMiB));
  EXPECT_THAT(grouped.status.message(),
              AllOf(HasSubstr("may use 512 MiB"), HasSubstr("Lower RDMACOLL_BUF_SIZE to 128 MiB")));
}

TEST(Room, refuses_a_default_pool_below_the_least) {
  EXPECT_THAT(
      fit({kGiB, false, 4}, address_space(400 * kMiB, 300 * kMiB)).status.message(),
      AllOf(HasSubstr("the smallest buffer pool has 16 MiB"), HasSubstr("RLIMIT_AS is 400 MiB")));
  EXPECT_FALSE(fit({kGiB, false, 1}, address_space(kMiB, 2 * kMiB)).status.ok());
  EXPECT_FALSE(fit({kGiB, false, 1}, group(kMiB)).status.ok());
}

TEST(Room, has_to_hold_the_pools_of_all_other_ranks_of_the_node) {
  const ProcessLimits limits = address_space(3000 * kMiB, 500 * kMiB);
  EXPECT_TRUE(check_mappings(kGiB, 1, limits).ok());
  EXPECT_TRUE(check_mappings(kGiB, 9, {}).ok());
  EXPECT_THAT(
      check_mappings(kGiB, 3, limits).message(),
      AllOf(HasSubstr("the 3 other ranks of this node (1 GiB each, mapped twice) need 6 GiB"),
            HasSubstr("2500 MiB are left"), HasSubstr("RDMACOLL_BUF_SIZE")));
}

class Machine : public testing::Test {
 protected:
  Machine() { std::filesystem::remove_all(root); }
  ~Machine() override { std::filesystem::remove_all(root); }
  void put(const std::string& path, const std::string& text) const {
    const std::filesystem::path file = root + path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }
  const std::string root = own_path("limits");
};

TEST_F(Machine, says_the_least_limit_of_the_groups_above) {
  put("/proc/self/cgroup", "0::/job/step\n");
  put("/sys/fs/cgroup/memory.max", "max\n");
  put("/sys/fs/cgroup/job/memory.max", "1073741824\n");
  put("/sys/fs/cgroup/job/step/memory.max", "2147483648\n");
  const ProcessLimits limits = process_limits(root);
  EXPECT_EQ(limits.group_limit, kGiB);
  EXPECT_EQ(limits.group_file, root + "/sys/fs/cgroup/job/memory.max");
}

TEST_F(Machine, knows_containers_and_the_first_version_of_groups) {
  put("/proc/self/cgroup", "0::/\n");
  put("/sys/fs/cgroup/memory.max", "536870912\n");
  EXPECT_EQ(process_limits(root).group_limit, 512 * kMiB);
  put("/proc/self/cgroup", "3:cpu,memory:/docker/x\n2:pids:/\n");
  put("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  EXPECT_EQ(process_limits(root).group_limit, std::nullopt);
  put("/sys/fs/cgroup/memory/docker/x/memory.limit_in_bytes", "268435456\n");
  EXPECT_EQ(process_limits(root).group_limit, 256 * kMiB);
}

TEST_F(Machine, has_as_much_memory_as_its_groups_allow) {
  const uint64_t of_machine = memory_limit_bytes(root);
  EXPECT_GT(of_machine, 64 * kMiB);
  put("/proc/self/cgroup", "0::/job\n");
  put("/sys/fs/cgroup/job/memory.max", "67108864\n");
  EXPECT_EQ(memory_limit_bytes(root), 64 * kMiB);
  put("/sys/fs/cgroup/job/memory.max", cat(2 * of_machine, "\n"));
  EXPECT_EQ(memory_limit_bytes(root), of_machine);
}

TEST_F(Machine, says_how_many_cores_its_groups_may_use) {
  EXPECT_EQ(group_cores(root), std::nullopt);
  put("/proc/self/cgroup", "0::/job/step\n");
  put("/sys/fs/cgroup/cpu.max", "max 100000\n");
  EXPECT_EQ(group_cores(root), std::nullopt);
  put("/sys/fs/cgroup/job/cpu.max", "250000 100000\n");
  put("/sys/fs/cgroup/job/step/cpu.max", "800000 100000\n");
  EXPECT_EQ(group_cores(root), 2.5);
  put("/proc/self/cgroup", "3:cpu,cpuacct:/docker/x\n2:pids:/\n");
  put("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n");
  put("/sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(group_cores(root), std::nullopt);
  put("/sys/fs/cgroup/cpu/docker/x/cpu.cfs_quota_us", "50000\n");
  EXPECT_EQ(group_cores(root), std::nullopt) << "there is no period";
  put("/sys/fs/cgroup/cpu/docker/x/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(group_cores(root), 0.5);
}

// A broken or unreadable file grants nothing and forbids nothing. The groups above count still.
TEST_F(Machine, takes_its_cores_from_the_groups_whose_files_it_can_read) {
  put("/proc/self/cgroup", "5:cpuset:/a\n1:cpuacct,cpu:/job/step\n0::/job/step\n");
  put("/sys/fs/cgroup/cpu/job/cpu.cfs_quota_us", "400000\n");
  put("/sys/fs/cgroup/cpu/job/cpu.cfs_period_us", "100000\n");
  put("/sys/fs/cgroup/cpu/job/step/cpu.cfs_quota_us", "100000\n");
  for (const char* period : {"", "0\n", "-5\n", "many\n"}) {
    put("/sys/fs/cgroup/cpu/job/step/cpu.cfs_period_us", period);
    EXPECT_EQ(group_cores(root), 4) << period;
  }
  std::filesystem::create_directories(root + "/sys/fs/cgroup/job/step/cpu.max");  // no file
  EXPECT_EQ(group_cores(root), 4);
  for (const char* quota : {"", "max", "max 100000\n", "0 100000\n", "-1 100000\n", "50000\n"}) {
    put("/sys/fs/cgroup/job/cpu.max", quota);
    EXPECT_EQ(group_cores(root), 4) << quota;
  }
  // Both versions are mounted on some machines, and the least quota counts.
  put("/sys/fs/cgroup/job/cpu.max", "50000 100000\n");
  EXPECT_EQ(group_cores(root), 0.5);
  put("/proc/self/cgroup", "1:cpuset:/job\n");
  EXPECT_EQ(group_cores(root), std::nullopt) << "cpuset is no cpu";
}

TEST(QuotaShare, is_that_of_one_rank_of_the_container) {
  World world{"job", 1, 0, {}};
  for (const auto& [host, machine] : {std::pair{"a", 1}, {"a", 1}, {"b", 1}, {"a", 2}, {"a", 1}}) {
    world.members.push_back({.host = host, .machine = machine});
  }
  EXPECT_EQ(quota_share(world, 6), 2);
  EXPECT_EQ(quota_share(world, 1.5), 0.5);
  EXPECT_TRUE(std::isinf(quota_share(world, std::nullopt)));
  world.rank = 2;  // a container of its own on this machine
  EXPECT_EQ(quota_share(world, 6), 6);
  world.rank = 3;  // another machine whose host has the same name
  EXPECT_EQ(quota_share(world, 6), 6);
}

TEST_F(Machine, survives_files_that_are_missing_or_broken) {
  EXPECT_EQ(process_limits(root).group_limit, std::nullopt);
  put("/proc/self/cgroup", ":\n\n0:\n0::relative\n0::/a//b/\n\xff:memory:");
  EXPECT_EQ(process_limits(root).group_limit, std::nullopt);
}

}  // namespace
}  // namespace rdmacoll
