// The NUMA node that a process is bound to, according to the kernel's files.
#include "bootstrap/numa.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>

namespace rdmacoll {
namespace {

using Cpus = std::vector<int>;

TEST(CpuLists, are_ranges_and_numbers) {
  EXPECT_EQ(parse_cpu_list("0"), Cpus({0}));
  EXPECT_EQ(parse_cpu_list("0-3"), Cpus({0, 1, 2, 3}));
  EXPECT_EQ(parse_cpu_list("0-1,8,10-11"), Cpus({0, 1, 8, 10, 11}));
  for (const char* text : {"", "x", "1-", "-1", "3-1", "1,", ",1", "1;2", "0-99999999", "1 ",
                           "8,0-1", "0-3,3", "1,1"}) {
    EXPECT_TRUE(parse_cpu_list(text).empty()) << text;
  }
}

struct Bound {
  Cpus allowed;
  int node;
};
// Two sockets with hyperthreads, of which the second has been given the number 2.
const NumaTable kTwoSockets = {{0, {0, 1, 4, 5}}, {2, {2, 3, 6, 7}}};
const Bound kBound[] = {{{0}, 0},  {{1, 5}, 0},  {{0, 1, 4, 5}, 0},     {{2, 3, 6, 7}, 2},
                        {{7}, 2},  {{1, 2}, -1}, {{0, 1, 2, 3, 4}, -1}, {{}, -1},
                        {{8}, -1}, {{7, 8}, -1}};

TEST(NumaNodes, are_those_that_have_all_cpus_of_a_process) {
  for (const Bound& bound : kBound) {
    EXPECT_EQ(numa_node_of(kTwoSockets, bound.allowed), bound.node)
        << testing::PrintToString(bound.allowed);
  }
  EXPECT_EQ(numa_node_of({}, {0}), -1);
}

class NumaFolder : public testing::Test {
 protected:
  NumaFolder() {
    std::string pattern = testing::TempDir() + "nodes-" + std::string(6, 'X');
    root_ = ::mkdtemp(pattern.data());
  }
  ~NumaFolder() override { std::filesystem::remove_all(root_); }
  void write(const std::string& node, const std::string& cpus) {
    std::filesystem::create_directories(root_ / node);
    std::ofstream(root_ / node / "cpulist") << cpus << "\n";
  }

  std::filesystem::path root_;
};

TEST_F(NumaFolder, has_a_table_of_the_nodes_with_processors) {
  EXPECT_TRUE(read_numa_table(root_).empty());
  write("node0", "0-1,4-5");
  write("node2", "2-3,6-7");
  write("node4", "");  // has memory but no processor
  write("power", "0-7");
  write("nodex", "0-7");
  std::filesystem::create_directories(root_ / "node5");  // says nothing
  EXPECT_EQ(read_numa_table(root_), kTwoSockets);
}

TEST(Cpus, are_written_as_they_are_read) {
  for (const char* text : {"", "0", "0-3,8", "5,7,9-12,300-301"}) {
    EXPECT_EQ(cpu_list_text(parse_cpu_list(text)), text);
  }
}

TEST(Cpus, are_not_those_of_another_text) {
  for (const char* text : {"1,0", "0-3,3", "0-65535,0-65535", "3-1", "0,", "a"}) {
    EXPECT_TRUE(parse_cpu_list(text).empty()) << text;
  }
}

TEST(Cpus, of_this_process_are_known) {
  const std::vector<int> cpus = allowed_cpus();
  EXPECT_FALSE(cpus.empty());
  EXPECT_EQ(parse_cpu_list(cpu_list_text(cpus)), cpus);
}

}  // namespace
}  // namespace rdmacoll
