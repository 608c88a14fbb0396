// Variable names: ranks with the same names in different orders would exchange their variables.
#include <algorithm>
#include <set>
#include <utility>

#include "agreement/readiness.h"
#include "base/text.h"
#include "operation/listing.h"

namespace rdmacoll {
namespace {

constexpr std::size_t kListingsMax = 4096;  // the number of listings that are kept

const std::string& name_of(const UnitKey& key, const std::string& descriptor) {
  return key.name.empty() ? descriptor : key.name;
}

}  // namespace

const std::string* Readiness::KnownNames::of(SetRank rank) const {
  const std::size_t at = rank.index();
  return at < of_rank.size() && of_rank[at] != kNone ? &texts[of_rank[at]] : nullptr;
}

// Root: the ranks that have each listing. A rank that has sent none has the one it sent before.
std::map<std::string, std::vector<SetRank>> Readiness::ranks_by_names(
    const UnitKey& key, const Pending& pending) const {
  const auto known = known_names_.find(name_of(key, pending.variants.front()));
  std::map<std::string, std::vector<SetRank>> ranks;
  for (const Contribution& contribution : pending.contributions) {
    const std::string& sent = pending.listings[contribution.listing];
    for (SetRank rank : ranks_of(contribution.origin, contribution.subtree)) {
      const std::string* before = known == known_names_.end() ? nullptr : known->second.of(rank);
      if (!sent.empty()) {
        ranks[sent].push_back(rank);
      } else if (before != nullptr) {
        ranks[*before].push_back(rank);
      }
    }
  }
  return ranks;
}

// Root: the listings that differ, with their ranks, in the order of their first ranks.
std::vector<Readiness::Listed> Readiness::listed(const UnitKey& key, const Pending& pending) const {
  std::map<SetRank, Listed> by_first_rank;
  for (auto& [names, ranks] : ranks_by_names(key, pending)) {
    std::vector<SetRank> sorted = ranks;
    std::sort(sorted.begin(), sorted.end());
    const std::string title = sorted.size() == 1 ? "rank " : "ranks ";
    by_first_rank[sorted.front()] = {cat(title, join(numbers(sorted), ", ")), names};
  }
  std::vector<Listed> all;
  for (auto& [rank, one] : by_first_rank) all.push_back(std::move(one));
  return all;
}

// Reordered names are an error. Other differences may be intended, so they cause one warning.
Status Readiness::check_order(const UnitKey& key, const Pending& pending, bool may_warn) {
  if (!is_root() || pending.listings.size() == 1) return {};
  const std::vector<Listed> all = listed(key, pending);
  std::string difference;  // the first one without the same names
  for (std::size_t i = 1; i < all.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      const Listed &first = all[j], &other = all[i];
      const Likeness found = likeness(first.names, other.names);
      if (found == Likeness::same || (found == Likeness::other && !difference.empty())) continue;
      difference = describe_difference(first.ranks, first.names, other.ranks, other.names);
      if (found == Likeness::other) continue;
      ErrorDetail detail;
      detail.tensor = tensor(key, pending);
      return {Code::mismatch,
              cat("ranks list the variables of ", title(key, world_),
                  " in different orders: ", difference,
                  ". Build the model in one order on every rank: sort sets and dictionaries before "
                  "iterating over them. Where the same names stand for different variables, set "
                  "RDMACOLL_CHECK_NAMES=false."),
              detail};
    }
  }
  if (may_warn && !difference.empty() && !std::exchange(has_warned_of_names_, true)) {
    warnings_.push_back(
        cat("ranks call the variables of ", title(key, world_), " by different names: ", difference,
            ". They are matched by their order: give every rank the same model, or "
            "set RDMACOLL_CHECK_NAMES=false where its names differ for good reason."));
  }
  return {};
}

void Readiness::remember_names(const UnitKey& key, const Pending& pending) {
  if (!is_root() || pending.listings.size() == 1) return;
  const std::string& name = name_of(key, pending.variants.front());
  if (known_names_.size() >= kListingsMax && !known_names_.contains(name)) return;
  const KnownNames& before = known_names_[name];
  KnownNames now;
  now.of_rank.assign(static_cast<std::size_t>(world_.size()), KnownNames::kNone);
  const auto set = [&now](SetRank rank, const std::string& names) {
    std::size_t text = 0;
    while (text < now.texts.size() && likeness(now.texts[text], names) != Likeness::same) ++text;
    if (text == now.texts.size()) now.texts.push_back(names);
    now.of_rank[rank.index()] = text;
  };
  for (const auto& [names, ranks] : ranks_by_names(key, pending)) {
    for (SetRank rank : ranks) set(rank, names);
  }
  // A rank that has joined takes no part, and does not repeat its names later.
  for (SetRank rank : world_.ranks()) {
    const bool is_missing = now.of(rank) == nullptr && before.of(rank) != nullptr;
    if (is_missing) set(rank, *before.of(rank));
  }
  known_names_[name] = std::move(now);
}

// For each other variant, the first tensor that differs from the first variant, with the name that
// ranks of this variant use. The first variant shows the tensors of all others, up to kShown.
std::vector<ShownTensor> Readiness::differing(const Pending& pending, std::size_t variant) const {
  constexpr std::size_t kShown = 3;
  std::set<std::size_t> positions;
  for (std::size_t other = 1; other < pending.variants.size(); ++other) {
    if ((variant != 0 && variant != other) || positions.size() == kShown) continue;
    const auto position = first_difference(pending.variants.front(), pending.variants[other]);
    if (position) positions.insert(*position);
  }
  const std::size_t count = tensors_of(pending.variants[variant]);
  std::vector<ShownTensor> shown;
  for (const std::size_t position : positions) {
    std::string name;
    for (const Contribution& one : pending.contributions) {
      if (one.variant != variant || !name.empty()) continue;
      name = name_at(pending.listings[one.listing], position, count);
    }
    shown.push_back({position, name});
  }
  return shown;
}

}  // namespace rdmacoll
