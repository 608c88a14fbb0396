// Unnamed operations of several threads.
#include "engine/submissions.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace rdmacoll {
namespace {

// Submits 128 operations in runs of one length. Each second run comes from a thread of its own.
// Returns what was logged.
std::string said_of(const std::string& name, int run, int members) {
  Submissions submissions(Log(LogLevel::warning, 0));
  std::vector<JobRank> ranks;
  for (int rank = 0; rank < members; ++rank) ranks.emplace_back(rank);
  submissions.open(0, SetRank(0), SetMembers(ranks));
  testing::internal::CaptureStderr();
  for (int begin = 0; begin < 128; begin += run) {
    const auto submit = [&] {
      for (int number = begin; number < begin + run; ++number) {
        Request request;
        request.kind = Kind::barrier;
        if (!name.empty()) request.name = name + std::to_string(number);
        EXPECT_TRUE(submissions.add(std::make_shared<Operation>(std::move(request))).ok());
      }
    };
    if (begin / run % 2 == 1) {
      std::thread(submit).join();
    } else {
      submit();
    }
  }
  return testing::internal::GetCapturedStderr();
}

TEST(UnnamedOperations, of_threads_that_take_turns_are_warned_of_once) {
  const std::string said = said_of("", 2, 2);
  EXPECT_NE(said.find("Give each a name"), std::string::npos) << said;
  EXPECT_EQ(std::count(said.begin(), said.end(), '\n'), 1) << said;
}

TEST(UnnamedOperations, of_threads_one_after_the_other_are_no_fault) {
  EXPECT_EQ(said_of("", 32, 2), "");
}

TEST(UnnamedOperations, are_no_fault_in_a_world_of_one) { EXPECT_EQ(said_of("", 2, 1), ""); }

TEST(UnnamedOperations, are_not_those_with_names) { EXPECT_EQ(said_of("x", 2, 2), ""); }

}  // namespace
}  // namespace rdmacoll
