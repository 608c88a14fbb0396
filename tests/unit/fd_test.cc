#include "base/fd.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>

namespace rdmacoll {
namespace {

bool is_open(int fd) { return ::fcntl(fd, F_GETFD) != -1; }

int some_file() { return ::open("/dev/null", O_RDONLY | O_CLOEXEC); }

TEST(Fd, closes_what_it_owns_once) {
  const int before = open_descriptors();
  int number = -1;
  {
    Fd first(some_file());
    number = first.get();
    EXPECT_TRUE(is_open(number));
    EXPECT_EQ(open_descriptors(), before + 1);
    Fd second(std::move(first));
    EXPECT_FALSE(first);  // NOLINT: moved from on purpose
    EXPECT_EQ(second.get(), number);
    EXPECT_EQ(open_descriptors(), before + 1);
    Fd third(some_file());
    third = std::move(second);
    EXPECT_EQ(third.get(), number);
    EXPECT_EQ(open_descriptors(), before + 1);
  }
  EXPECT_FALSE(is_open(number));
  EXPECT_EQ(open_descriptors(), before);
}

TEST(Fd, minus_one_is_nothing) {
  const int before = open_descriptors();
  Fd none(-1);
  EXPECT_FALSE(none);
  EXPECT_EQ(open_descriptors(), before);
}

TEST(Fd, a_number_that_was_freed_can_be_owned_again) {
  Fd first(some_file());
  const int number = first.get();
  first.reset();
  Fd again(some_file());
  EXPECT_EQ(again.get(), number);
}

TEST(Fd, that_is_released_stays_open_and_is_owned_by_nobody) {
  const int before = open_descriptors();
  Fd lent(some_file());
  const int number = lent.get();
  lent.release();
  EXPECT_FALSE(lent);
  EXPECT_TRUE(is_open(number));
  EXPECT_EQ(open_descriptors(), before);
  ::close(number);
}

TEST(FdDeathTest, two_owners_of_one_descriptor_are_refused) {
  Fd first(some_file());
  EXPECT_DEATH(Fd{first.get()}, "has two owners");
}

// The child must close the parent's end of the pipe. A destructor that runs in the child must not
// close a descriptor that the child opens afterwards.
TEST(Fd, a_forked_child_closes_all_and_then_owns_nothing) {
  std::array<int, 2> ends{};
  ASSERT_EQ(::pipe2(ends.data(), O_CLOEXEC), 0);
  Fd reading(ends[0]);
  Fd writing(ends[1]);
  const pid_t child = ::fork();
  if (child == 0) {
    close_all_descriptors_in_child();
    if (is_open(reading.get()) || is_open(writing.get()) || open_descriptors() != 0) ::_exit(1);
    int reused = some_file();  // lower numbers are free, too, if other tests keep descriptors
    while (reused < reading.get()) reused = some_file();
    if (reused != reading.get()) ::_exit(2);
    reading.reset();
    ::_exit(is_open(reused) ? 0 : 3);
  }
  int state = 0;
  ASSERT_EQ(::waitpid(child, &state, 0), child);
  EXPECT_TRUE(WIFEXITED(state));
  EXPECT_EQ(WEXITSTATUS(state), 0);
  EXPECT_TRUE(is_open(reading.get()));
}

}  // namespace
}  // namespace rdmacoll
