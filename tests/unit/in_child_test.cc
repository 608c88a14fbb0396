// Random tests in child processes name each death, and end where the next one would take as long.
#include "in_child.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <new>
#include <string>
#include <vector>

namespace rdmacoll {
namespace {

using testing::ElementsAre;

TEST(Children, go_on_behind_one_that_crashed) {
  Children children;
  Told& told = children.told();
  const std::vector<std::string> found = children.deaths([&] { return told.next < 9; },
                                                         [&](uint64_t seed) {
                                                           keep(cat("seed ", seed), told.about);
                                                           if (seed == 3 || seed == 5) _exit(1);
                                                         });
  EXPECT_THAT(found, ElementsAre("seed 3: crashes", "seed 5: crashes"));
  EXPECT_EQ(told.next, 9u);
}

TEST(Children, end_with_one_that_took_too_much_memory) {
  Children children;
  Told& told = children.told();
  const std::vector<std::string> found = children.deaths([&] { return told.next < 9; },
                                                         [&](uint64_t seed) {
                                                           keep(cat("seed ", seed), told.about);
                                                           if (seed >= 3) throw std::bad_alloc();
                                                         });
  EXPECT_THAT(found, ElementsAre("seed 3: takes too much memory"));
  EXPECT_EQ(told.next, 4u);
}

}  // namespace
}  // namespace rdmacoll
