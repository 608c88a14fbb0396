#include "base/rank_lists.h"

#include <charconv>
#include <sstream>

#include "base/text.h"

namespace rdmacoll {

bool parse_process_sets(std::string_view text, std::vector<std::vector<int>>& lists,
                        std::string& written) {
  std::vector<std::string> sets;
  std::istringstream all{std::string(text)};
  for (std::string set; lower(text) != "none" && std::getline(all, set, ';');) {
    std::vector<int>& ranks = lists.emplace_back();
    std::istringstream numbers(set);
    for (std::string number; std::getline(numbers, number, ',');) {
      const std::string_view digits = trim(number);
      const char* const end = digits.data() + digits.size();
      const auto [rest, problem] = std::from_chars(digits.data(), end, ranks.emplace_back());
      if (problem != std::errc() || rest != end || ranks.back() < 0) return false;
      if (ranks.size() > 1 && ranks.back() <= ranks[ranks.size() - 2]) return false;
    }
    if (ranks.empty() || set.back() == ',') return false;
    sets.push_back(join(ranks, ","));
  }
  written = sets.empty() ? "none" : join(sets, ";");
  return true;
}

}  // namespace rdmacoll
