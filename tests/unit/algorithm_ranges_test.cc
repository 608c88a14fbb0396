// Lists of algorithms by size, in rdmacoll's words and in those of tf_cnn_benchmarks.
#include "settings/algorithm_ranges.h"

#include <gtest/gtest.h>

#include <map>

#include "collectives/algorithms.h"

namespace rdmacoll {
namespace {

TEST(AlgorithmRanges, are_read_and_written) {
  const auto found = algorithm_ranges_from("Ring: 4K :direct:1MiB:auto");
  ASSERT_TRUE(found);
  const std::vector<AlgorithmRange> expected = {
      {"ring", 4096}, {"direct", 1 << 20}, {"auto", UINT64_MAX}};
  EXPECT_EQ(found->ranges, expected);
  EXPECT_EQ(found->text(), "ring:4096:direct:1048576:auto");
  EXPECT_EQ(algorithm_ranges_from(found->text())->ranges, expected);
  EXPECT_EQ(found->note, "");
}

TEST(AlgorithmRanges, of_tf_cnn_benchmarks_are_mapped_and_said) {
  const std::map<std::string, std::string> kSpecs = {
      {"xring", "ring"},
      {"pscpu", "direct"},
      {"psgpu#4", "direct"},
      {"nccl", "auto"},
      {"collective", "auto"},
      {"nccl/xring", "two_level"},
      {"nccl/rechd", "two_level"},
      {"pscpu/pscpu#2", "two_level"},
      {"hierarchical_copy", "two_level"},
      {"rsag#2:32k:ring", "halving_doubling:32768:ring"},
      {"pscpu:2k:pscpu#2:64k:xring", "direct:2048:direct:65536:ring"}};
  for (const auto& [theirs, ours] : kSpecs) {
    const auto found = algorithm_ranges_from(theirs);
    ASSERT_TRUE(found) << theirs;
    EXPECT_EQ(found->text(), ours);
    EXPECT_TRUE(found->note.starts_with(theirs + " is taken as " + ours)) << found->note;
    const auto has = [&text = theirs](char letter) {
      return text.find(letter) != std::string::npos;
    };
    EXPECT_EQ(found->note.find("shards") != std::string::npos, has('#')) << found->note;
    EXPECT_EQ(found->note.find("bytes") != std::string::npos, has(':')) << found->note;
  }
}

TEST(AlgorithmRanges, that_are_none_are_refused) {
  for (const char* text :
       {"", "ringer", "ring,direct", "ring:4k", "ring:direct:direct", ":4k:ring", "ring:0:direct",
        "ring:8k:direct:4k:ring", "ring:8k:direct:8k:ring", "ring:4k:", "ring#", "ring#two",
        "a/ring", "ring/", "nccl/nccl/nccl", "pipelined_tree", "ring:-1:direct"}) {
    EXPECT_FALSE(algorithm_ranges_from(text)) << text;
  }
}

TEST(AlgorithmRanges, know_every_algorithm_that_sums_and_no_other) {
  const std::string allowed = allowed_algorithm_ranges();
  for (const AlgorithmRow& row : algorithm_table()) {
    const bool sums = row.result == AlgorithmRow::Result::sum && !row.by_servers;
    const auto found = algorithm_ranges_from(row.name);
    EXPECT_EQ(found.has_value(), sums) << row.name;
    EXPECT_EQ(allowed.find(row.name) != std::string::npos, sums) << allowed;
    if (found) {
      EXPECT_EQ(found->note, "") << row.name;
    }
  }
}

}  // namespace
}  // namespace rdmacoll
