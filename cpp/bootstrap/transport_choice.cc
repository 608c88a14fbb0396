#include "bootstrap/transport_choice.h"

#include <algorithm>

#include "base/text.h"

namespace rdmacoll {

TransportChoice::TransportChoice(const std::vector<TransportRow>& rows, const Config& config)
    : config_(config) {
  RC_ASSERT(!rows.empty(), "no transport");
  for (const TransportRow& row : rows) entries_.push_back({row, row.make(), {}, {}});
}

int TransportChoice::descriptors(int peers) const {
  int per_peer = 0, devices = 0;
  for (const Entry& entry : entries_) {
    per_peer = std::max(per_peer, entry.provider->descriptors_per_peer(config_));
    devices += entry.provider->descriptors_of_devices();
  }
  return peers * per_peer + devices;
}

std::map<std::string, TransportCard> TransportChoice::probe(MemoryPool& pool, bool has_peers) {
  std::map<std::string, TransportCard> cards;
  for (const Entry& entry : entries_) {
    TransportCard& card = cards[std::string(entry.row.name)];
    if (!config_.allows(entry.row.name)) {
      card = {.obstacle = "RDMACOLL_TRANSPORT leaves it out.", .is_off = true};
    } else if (has_peers || !entry.provider->request(config_).empty()) {
      card = entry.provider->probe(config_, pool);
    }
  }
  return cards;
}

Status TransportChoice::agree(const std::vector<Card>& cards, const World& world) {
  pool_bytes_ = cards.front().pool_bytes;
  for (const Card& card : cards) pool_bytes_ = std::min(pool_bytes_, card.pool_bytes);
  for (Entry& entry : entries_) {
    if (world.size() == 1 && entry.provider->request(config_).empty()) continue;
    RC_RETURN_IF_ERROR(agree_on(entry, cards, world));
    const uint64_t limit = entry.agreement.pool_bytes;
    if (limit > 0) pool_bytes_ = std::min(pool_bytes_, limit);
  }
  // Every rank looks at all pairs, so that all ranks report the same.
  for (int a = 0; a < world.size(); ++a) {
    for (int b = a + 1; b < world.size(); ++b) {
      const std::optional<std::size_t> found = find(a, b);
      if (!found) return unreachable(world, a, b);
      entries_[*found].is_used = true;
    }
  }
  return {};
}

Status TransportChoice::agree_on(Entry& entry, const std::vector<Card>& cards, const World& world) {
  for (int rank = 0; rank < world.size(); ++rank) {
    const Card& card = cards[static_cast<std::size_t>(rank)];
    const auto own = card.transports.find(std::string(entry.row.name));
    entry.ranks.push_back({.card = own != card.transports.end()
                                       ? own->second
                                       : TransportCard{.obstacle = "its build has none."},
                           .pool_bytes = card.pool_bytes,
                           .node = world.members[static_cast<std::size_t>(rank)].node});
  }
  return agree_on_transport(
      entry.row, *entry.provider, entries_.back().row.title, entry.ranks, config_,
      [&](int rank) { return world.describe(rank); }, entry.agreement);
}

std::optional<std::size_t> TransportChoice::find(int a, int b) const {
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    const Entry& entry = entries_[i];
    if (entry.agreement.use && entry.provider->can_reach(entry.ranks[a], entry.ranks[b])) return i;
  }
  return std::nullopt;
}

Status TransportChoice::unreachable(const World& world, int a, int b) const {
  std::string reasons;
  for (const Entry& entry : entries_) {
    if (!entry.agreement.use) continue;
    const std::string_view reason = entry.provider->separation(entry.ranks[a], entry.ranks[b]);
    reasons += cat(reasons.empty() ? ": " : "; ", reason, " (", entry.row.name, ")");
  }
  return {Code::invalid,
          cat("RDMACOLL_TRANSPORT=", join(config_.transports, ","), " leaves no way between ",
              world.describe(a), " and ", world.describe(b), reasons, ". Add ",
              entries_.back().row.name, ", or leave it unset.")};
}

std::string TransportChoice::names() const {
  std::vector<std::string_view> names;
  for (const Entry& entry : entries_) {
    if (entry.is_used) names.push_back(entry.row.name);
  }
  return names.empty() ? "none" : join(names, "+");
}

Status agree_on_transport(const TransportRow& row, const TransportProvider& provider,
                          std::string_view fallback, std::span<const Candidate> ranks,
                          const Config& config, const Describe& describe,
                          TransportAgreement& agreement) {
  agreement = {};
  const auto unable = std::find_if(ranks.begin(), ranks.end(), [](const Candidate& rank) {
    return !rank.card.obstacle.empty();
  });
  agreement.use = unable == ranks.end();
  if (agreement.use) return provider.agree(ranks, config, describe, agreement);
  const std::string who = describe(static_cast<int>(unable - ranks.begin()));
  const auto requester = std::find_if(
      ranks.begin(), ranks.end(), [](const Candidate& rank) { return !rank.card.request.empty(); });
  if (requester != ranks.end()) {
    return {Code::invalid, cat(row.title, " was requested (", requester->card.request, " at ",
                               describe(static_cast<int>(requester - ranks.begin())), "), and ",
                               who, " cannot use it: ", unable->card.obstacle,
                               " To go without it, unset that setting.")};
  }
  // If no rank has a device, there is nothing to report.
  const bool has_devices = std::any_of(ranks.begin(), ranks.end(),
                                       [](const Candidate& rank) { return rank.card.has_devices; });
  if (has_devices && !unable->card.is_off) {
    agreement.warning =
        cat("no ", row.title, ", but ", fallback, ": ", who,
            " cannot use it: ", unable->card.obstacle, " ", provider.how_to_turn_off());
  }
  return {};
}

}  // namespace rdmacoll
