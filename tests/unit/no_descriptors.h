// While an object lives, this process can open at most `left` further descriptors.
#pragma once

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <vector>

#include "base/event.h"

namespace rdmacoll {

class NoDescriptors {
 public:
  explicit NoDescriptors(int left = 0) {
    EXPECT_EQ(::getrlimit(RLIMIT_NOFILE, &before_), 0);
    for (int i = 0; i < left; ++i) hoard_.push_back(make_event());
    // This is the lowest free number, so all numbers below are in use.
    const int first_free = make_event().get();
    limit_ = {static_cast<rlim_t>(first_free), before_.rlim_max};
    EXPECT_EQ(::setrlimit(RLIMIT_NOFILE, &limit_), 0);
    hoard_.clear();
  }
  ~NoDescriptors() { EXPECT_EQ(::setrlimit(RLIMIT_NOFILE, &before_), 0); }
  NoDescriptors(const NoDescriptors&) = delete;
  NoDescriptors& operator=(const NoDescriptors&) = delete;

  const rlimit& limit() const { return limit_; }

 private:
  rlimit before_{}, limit_{};
  std::vector<Fd> hoard_;
};

}  // namespace rdmacoll
