#include "base/system_error.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>

#include "base/event.h"
#include "base/text.h"
#include "unit/no_descriptors.h"

namespace rdmacoll {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(SystemError, says_what_failed_and_why) {
  const Status status = system_error("cannot open a socket", EACCES);
  EXPECT_EQ(status.code(), Code::failed);
  EXPECT_EQ(status.message(), "cannot open a socket: permission denied");
}

TEST(SystemError, a_limit_that_was_reached_is_the_users_to_raise) {
  EXPECT_EQ(system_error("eventfd", ENFILE).code(), Code::invalid);
  EXPECT_THAT(system_error("eventfd", ENFILE).message(), HasSubstr("fs.file-max"));
  const NoDescriptors none;
  const Status status = system_error("eventfd", EMFILE);
  EXPECT_EQ(status.code(), Code::invalid);
  EXPECT_THAT(
      status.message(),
      AllOf(HasSubstr(cat("eventfd: too many open files: all ", none.limit().rlim_cur, " ")),
            HasSubstr("RLIMIT_NOFILE"), HasSubstr("`ulimit -n ")));
}

TEST(SystemError, the_limit_on_the_size_of_files_is_named_with_the_cure) {
  EXPECT_THAT(
      system_error("ftruncate", EFBIG).message(),
      AllOf(HasSubstr("file too large"), HasSubstr("RLIMIT_FSIZE"), HasSubstr("`ulimit -f ")));
}

TEST(SystemError, the_advice_is_the_hard_limit_or_how_to_raise_that) {
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  ASSERT_GT(before.rlim_max, 256u);
  const std::string all = "limits.d";
  {
    const NoDescriptors none;
    const std::string expected = before.rlim_max == RLIM_INFINITY ? "65536" : cat(before.rlim_max);
    EXPECT_THAT(error_text(EMFILE),
                AllOf(HasSubstr(cat("`ulimit -n ", expected, "`")), Not(HasSubstr(all))));
  }
  // A hard limit cannot be raised again, so the test lowers it in another process.
  EXPECT_EXIT(
      {
        rlimit low{};
        low.rlim_cur = low.rlim_max = 64;
        ::setrlimit(RLIMIT_NOFILE, &low);
        ::_exit(error_text(EMFILE).find(all) != std::string::npos ? 0 : 1);
      },
      testing::ExitedWithCode(0), "");
}

TEST(SystemError, the_start_says_how_many_descriptors_it_lacks) {
  EXPECT_TRUE(check_descriptors(16).ok());
  const NoDescriptors none(5);
  EXPECT_TRUE(check_descriptors(5).ok());
  const Status status = check_descriptors(6);
  EXPECT_EQ(status.code(), Code::invalid);
  const rlim_t limit = none.limit().rlim_cur;
  EXPECT_THAT(status.message(),
              HasSubstr(cat("needs 6 more file descriptors, and ", limit - 5, " of the ", limit)));
  EXPECT_TRUE(check_descriptors(5).ok()) << "those that were tried are closed";
}

TEST(SystemError, what_cannot_be_watched_is_an_error) {
  const Fd epoll(::epoll_create1(EPOLL_CLOEXEC));
  const Fd bell = make_event();
  EXPECT_TRUE(watch(epoll.get(), bell.get(), {.events = EPOLLIN, .data = {}}).ok());
  const Fd file(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  EXPECT_EQ(watch(epoll.get(), file.get(), {.events = EPOLLIN, .data = {}}).message(),
            "epoll_ctl: operation not permitted");
}

}  // namespace
}  // namespace rdmacoll
