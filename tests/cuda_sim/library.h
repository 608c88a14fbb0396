// Finds the fake driver, for C++ tests. It lies in the folder of the test's program.
#pragma once

#include <filesystem>
#include <string>

namespace rdmacoll::cuda_sim {

inline std::string library_path(const char* name = "libcuda_sim.so") {
  return std::filesystem::read_symlink("/proc/self/exe").replace_filename(name).string();
}

}  // namespace rdmacoll::cuda_sim
