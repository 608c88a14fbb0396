#include "base/status.h"

#include <gtest/gtest.h>

#include "base/text.h"

namespace rdmacoll {
namespace {

TEST(Status, ok_by_default_and_busy_is_not_ok) {
  const Status fine;
  EXPECT_TRUE(fine.ok());
  EXPECT_EQ(fine.code(), Code::ok);
  const Status busy = Status::busy();
  EXPECT_FALSE(busy.ok());
  EXPECT_TRUE(busy.is_busy());
  EXPECT_EQ(busy.code(), Code::busy);
  EXPECT_FALSE(busy.message().empty());
}

TEST(Status, names_the_python_classes) {
  const std::pair<Code, const char*> kNames[] = {
      {Code::invalid, "ConfigError"},
      {Code::mismatch, "MismatchError"},
      {Code::duplicate, "DuplicateNameError"},
      {Code::rank_failed, "RankFailedError"},
      {Code::stalled, "StalledError"},
      {Code::shutdown, "ShutdownError"},
      {Code::uninitialized, "NotInitializedError"},
      {Code::failed, "RdmacollError"},
      {Code::busy, "RdmacollError"},
  };
  for (const auto& [code, name] : kNames) EXPECT_EQ(error_name(code), name);
}

TEST(Status, crosses_the_boundary_as_json_with_every_field) {
  const Status status(Code::stalled, "say \"why\"\n",
                      {.rank = {},
                       .host = "h",
                       .cause = "c",
                       .tensor = "dense/kernel",
                       .ranks = {JobRank(1), JobRank(4)}});
  EXPECT_EQ(status.to_json(),
            "{\"kind\": \"StalledError\", \"message\": \"say \\\"why\\\"\\n\", \"rank\": -1, "
            "\"host\": \"h\", \"cause\": \"c\", \"tensor\": \"dense/kernel\", \"ranks\": [1, 4]}");
}

TEST(Status, copies_share_one_error) {
  const Status status(Code::failed, std::string(1000, 'x'));
  const Status copy = status;
  EXPECT_EQ(&copy.message(), &status.message());
}

TEST(StatusDeathTest, a_broken_assertion_says_what_and_where_and_with_which_values) {
  const int answer = 41;
  EXPECT_DEATH(RC_ASSERT(answer == 42, cat("answer ", answer)),
               "status_test.cc:[0-9]+: answer == 42, with answer 41");
}

}  // namespace
}  // namespace rdmacoll
