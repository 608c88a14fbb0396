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

// Root: the listings that differ, with their ranks.
std::vector<Readiness::Listed> Readiness::listed(const UnitKey& key, const Pending& pending) const {
  std::vector<Listed> all;
  for (std::size_t listing = 0; listing < pending.listings.size(); ++listing) {
    std::vector<int> ranks;
    for (const Contribution& contribution : pending.contributions) {
      if (contribution.listing != listing) continue;
      for (int rank : ranks_of(contribution.origin, contribution.subtree)) ranks.push_back(rank);
    }
    const std::string* names = &pending.listings[listing];
    if (names->empty()) {
      const auto known = listings_.find(name_of(key, pending.variants.front()));
      if (known == listings_.end()) continue;
      names = &known->second;
    }
    if (ranks.empty()) continue;
    std::sort(ranks.begin(), ranks.end());
    all.push_back(
        {cat(ranks.size() == 1 ? "rank " : "ranks ", join(numbers(ranks), ", ")), *names});
  }
  return all;
}

// Reordered names are an error. Other differences may be intended, so they cause one warning.
Status Readiness::check_order(const UnitKey& key, const Pending& pending, bool may_warn) {
  if (!is_root() || pending.listings.size() == 1) return {};
  const std::vector<Listed> all = listed(key, pending);
  for (std::size_t i = 1; i < all.size(); ++i) {
    const Listed &first = all.front(), &other = all[i];
    const Likeness found = likeness(first.names, other.names);
    if (found == Likeness::same) continue;
    const std::string difference =
        describe_difference(first.ranks, first.names, other.ranks, other.names);
    if (found == Likeness::reordered) {
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
    if (may_warn && !std::exchange(has_warned_of_names_, true)) {
      warnings_.push_back(cat(
          "ranks call the variables of ", title(key, world_), " by different names: ", difference,
          ". They are matched by their order: give every rank the same model, or "
          "set RDMACOLL_CHECK_NAMES=false where its names differ for good "
          "reason."));
    }
  }
  return {};
}

void Readiness::remember_names(const UnitKey& key, const Pending& pending) {
  if (!is_root() || pending.listings.size() == 1) return;
  const std::string& name = name_of(key, pending.variants.front());
  if (listings_.size() >= kListingsMax && !listings_.contains(name)) return;
  listings_[name] = pending.listings[1];
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
