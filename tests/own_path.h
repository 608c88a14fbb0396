// Paths of files that a test makes.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <string>

namespace rdmacoll {

// A path in the folder for temporary files. No other process has it: builds may run their tests at
// once.
inline std::string own_path(const std::string& name) {
  return testing::TempDir() + name + "-" + std::to_string(::getpid());
}

}  // namespace rdmacoll
