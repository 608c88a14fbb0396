#include "engine/set_table.h"

#include <algorithm>
#include <set>

#include "base/text.h"

namespace rdmacoll {
namespace {

// A set receives this fraction of the bytes that its fullest member has left.
constexpr uint64_t kShare = 16;

}  // namespace

const SetTable::Entry* SetTable::find(uint32_t number) const {
  const auto found = entries_.find(number);
  return found == entries_.end() ? nullptr : &found->second;
}

Status SetTable::add(const std::vector<JobRank>& ranks, uint32_t& number) {
  RC_RETURN_IF_ERROR(check(ranks));
  Entry entry{ranks, {free_lane(), kBatchesInFlightOfSet}, bytes_};
  for (JobRank rank : ranks) entry.bytes = std::min(entry.bytes, left(rank) / kShare);
  number = next_++;
  entries_[number] = std::move(entry);
  return {};
}

Status SetTable::check(const std::vector<JobRank>& ranks) const {
  const std::string text = cat("(", join(ranks, ", "), ")");
  if (ranks.empty()) return {Code::invalid, "a process set needs at least one rank."};
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    if (ranks[i].is_none() || ranks[i].value() >= ranks_) {
      const std::string known = ranks_ == 1 ? "only 0 is" : cat("0 to ", ranks_ - 1, " are");
      const std::string cure =
          ranks[i].is_none() ? ""
                             : cat(" Start ", ranks[i].value() + 1, " or more, or leave it out.");
      return {Code::invalid, cat("process set ", text, ": ", ranks[i],
                                 " is no rank of this world: ", known, ".", cure)};
    }
    if (i > 0 && ranks[i] <= ranks[i - 1]) {
      return {Code::invalid,
              cat("process set ", text, ": name each rank once, in ascending order.")};
    }
  }
  if (static_cast<int>(ranks.size()) == ranks_) {
    return {Code::invalid,
            cat("process set ", text, " has all ranks: that is global_process_set, which exists.")};
  }
  for (const auto& [number, entry] : entries_) {
    if (entry.ranks != ranks) continue;
    return {Code::invalid, cat("process set ", text, " exists already, as number ", number,
                               ": use that one, or remove it first.")};
  }
  if (entries_.size() == kSetsMax) {
    return {Code::invalid, cat("there are ", kSetsMax, " process sets already, and no more fit: ",
                               "remove some that are not used any more.")};
  }
  return {};
}

std::size_t SetTable::free_lane() const {
  std::set<std::size_t> taken;
  for (const auto& [number, entry] : entries_) taken.insert(entry.lanes.first);
  std::size_t lane = kBatchesInFlight;
  while (taken.contains(lane)) lane += kBatchesInFlightOfSet;
  return lane;
}

uint64_t SetTable::left(JobRank rank) const {
  uint64_t left = bytes_;
  for (const auto& [number, entry] : entries_) {
    if (std::binary_search(entry.ranks.begin(), entry.ranks.end(), rank)) left -= entry.bytes;
  }
  return left;
}

}  // namespace rdmacoll
