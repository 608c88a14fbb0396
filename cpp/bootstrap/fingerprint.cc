#include "bootstrap/fingerprint.h"

#include <algorithm>
#include <map>
#include <set>

#include "base/text.h"

namespace rdmacoll {
namespace {

// At most this many ranks are named. "and 1021 others" stands for the rest.
constexpr std::size_t kRanksNamed = 8;

std::string ranks_text(const std::vector<int>& ranks) {
  if (ranks.size() == 1) return cat("rank ", ranks[0]);
  if (ranks.size() <= kRanksNamed) return cat("ranks ", join(ranks, ", "));
  const std::vector<int> first(ranks.begin(), ranks.begin() + kRanksNamed);
  return cat("ranks ", join(first, ", "), " and ", ranks.size() - kRanksNamed, " others");
}

// Appends a line to `differences` if `values`, by rank, are not all equal.
void compare(const std::string& what, const std::vector<std::string>& values,
             const std::vector<int>& numbers, std::vector<std::string>& differences) {
  std::vector<std::pair<std::string, std::vector<int>>> groups;  // in order of the lowest rank
  for (std::size_t rank = 0; rank < values.size(); ++rank) {
    auto group = std::find_if(groups.begin(), groups.end(),
                              [&](const auto& one) { return one.first == values[rank]; });
    if (group == groups.end()) group = groups.insert(group, {values[rank], {}});
    group->second.push_back(numbers.empty() ? static_cast<int>(rank) : numbers[rank]);
  }
  if (groups.size() < 2) return;
  std::vector<std::string> texts;
  for (const auto& [value, ranks] : groups) texts.push_back(cat(ranks_text(ranks), ": ", value));
  differences.push_back(cat(what, ": ", join(texts, "; ")));
}

template <typename Value>
std::vector<std::string> by_rank(const std::vector<Card>& cards, Value value) {
  std::vector<std::string> values;
  for (const Card& card : cards) values.push_back(value(card));
  return values;
}

}  // namespace

Status compare_fingerprints(const std::vector<Card>& cards, const std::vector<int>& numbers) {
  std::vector<std::string> builds;
  compare("wire version", by_rank(cards, [](const Card& card) { return cat(card.wire); }), numbers,
          builds);
  compare("ABI version", by_rank(cards, [](const Card& card) { return cat(card.abi); }), numbers,
          builds);
  if (!builds.empty()) {
    return Status(Code::invalid, cat("the ranks run different builds of rdmacoll:\n  ",
                                     join(builds, "\n  "), "\nInstall one version everywhere."));
  }
  std::set<std::string> names;
  for (const Card& card : cards) {
    for (const auto& [name, value] : card.settings) names.insert(name);
  }
  std::vector<std::string> settings;
  for (const std::string& name : names) {
    compare(name,
            by_rank(cards,
                    [&](const Card& card) {
                      const auto at = card.settings.find(name);
                      return at == card.settings.end() ? std::string("(none)") : at->second;
                    }),
            numbers, settings);
  }
  if (settings.empty()) return {};
  return Status(Code::invalid, cat("the ranks have different settings:\n  ", join(settings, "\n  "),
                                   "\nSet them equally on all ranks."));
}

}  // namespace rdmacoll
