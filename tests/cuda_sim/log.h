// Counts calls and work, and tells of misuse. All functions are called with the driver's lock held.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace rdmacoll::cuda_sim {

class Log {
 public:
  Log();

  void count(std::string_view what, long long by = 1);
  long long value(std::string_view what) const;
  void reset() { counts_.clear(); }

  // Tells of a use that a real driver may accept or crash on, and that is always a fault of the
  // caller. Ends the process, unless CUDA_SIM_MISUSE=count.
  void misuse(const std::string& sentence);

  // Returns counts, with these further ones, and misuses as JSON.
  std::string json(const std::map<std::string, long long>& more) const;

 private:
  std::map<std::string, long long, std::less<>> counts_;
  std::vector<std::string> misuses_;
  const bool is_misuse_fatal_;
};

}  // namespace rdmacoll::cuda_sim
