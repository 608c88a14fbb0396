#include "cuda_sim/log.h"

#include <cstdio>
#include <cstdlib>

#include "cuda_sim/json.h"

namespace rdmacoll::cuda_sim {
namespace {

bool misuse_is_fatal() {
  const char* setting = std::getenv("CUDA_SIM_MISUSE");
  return !setting || std::string_view(setting) != "count";
}

}  // namespace

Log::Log() : is_misuse_fatal_(misuse_is_fatal()) {}

void Log::count(std::string_view what, long long by) {
  const auto found = counts_.find(what);
  if (found == counts_.end()) {
    counts_.emplace(what, by);
  } else {
    found->second += by;
  }
}

long long Log::value(std::string_view what) const {
  const auto found = counts_.find(what);
  return found == counts_.end() ? 0 : found->second;
}

void Log::misuse(const std::string& sentence) {
  std::fprintf(stderr, "cuda_sim: misuse: %s\n", sentence.c_str());
  if (is_misuse_fatal_) std::abort();
  count("misuses");
  misuses_.push_back(sentence);
}

std::string Log::json(const std::map<std::string, long long>& more) const {
  std::map<std::string, long long> all(counts_.begin(), counts_.end());
  all.insert(more.begin(), more.end());
  std::string text = "{";
  for (const auto& [name, number] : all) {
    text += quoted(name) + ": " + std::to_string(number) + ",\n ";
  }
  text += "\"sentences of misuse\": [";
  for (std::size_t i = 0; i < misuses_.size(); ++i) {
    text += (i ? ", " : "") + quoted(misuses_[i]);
  }
  return text + "]}";
}

}  // namespace rdmacoll::cuda_sim
