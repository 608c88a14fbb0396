// Which transport two ranks use. All ranks compute the same choice from the cards.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/config.h"
#include "base/world.h"
#include "bootstrap/card.h"
#include "memory/pool.h"
#include "transport/provider.h"

namespace rdmacoll {

class TransportChoice {
 public:
  // One transport, and what the world has decided about it.
  struct Entry {
    TransportRow row;
    std::unique_ptr<TransportProvider> provider;
    std::vector<Candidate> ranks;  // after agree()
    TransportAgreement agreement;
    bool is_used = false;  // some pair of the world uses it
  };

  // `rows` are in order of preference. `config` outlives the choice.
  TransportChoice(const std::vector<TransportRow>& rows, const Config& config);

  // The descriptors that devices, and this many peers, take at most.
  int descriptors(int peers) const;

  // This rank's part of its card. A rank without peers only looks for requested transports.
  std::map<std::string, TransportCard> probe(MemoryPool& pool, bool has_peers);

  // Decides for all ranks. ConfigError if a requested transport cannot be used, or if two ranks do
  // not reach each other.
  Status agree(const std::vector<Card>& cards, const World& world);

  // After agree().
  // The transport between two ranks: an index of entries().
  std::size_t between(int a, int b) const { return *find(a, b); }
  const std::vector<Entry>& entries() const { return entries_; }
  // The transports that pairs use: "shm+rdma"; "none" in a world of one.
  std::string names() const;
  // The size of the pool of all ranks.
  uint64_t pool_bytes() const { return pool_bytes_; }

 private:
  std::optional<std::size_t> find(int a, int b) const;
  Status agree_on(Entry& entry, const std::vector<Card>& cards, const World& world);
  Status unreachable(const World& world, int a, int b) const;

  const Config& config_;
  std::vector<Entry> entries_;
  uint64_t pool_bytes_ = 0;
};

// Decides about one transport: one rank that cannot use it rules it out for all. ConfigError if
// some rank has requested it. `fallback`: the title of the transport that ranks then use.
Status agree_on_transport(const TransportRow& row, const TransportProvider& provider,
                          std::string_view fallback, std::span<const Candidate> ranks,
                          const Config& config, const Describe& describe,
                          TransportAgreement& agreement);

}  // namespace rdmacoll
