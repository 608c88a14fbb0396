// Joins. Ranks without further data take part in sums with zeros until all ranks have joined. Then
// all ranks continue normally.
#include <algorithm>
#include <cstring>
#include <new>

#include "engine/process_set.h"

namespace rdmacoll {
namespace {

// The key of a join in undecided_. No operation has it.
const UnitKey kJoin{"", kJoinIteration};

}  // namespace

void ProcessSet::announce_join() {
  const auto found = undecided_.find(kJoin);
  if (found == undecided_.end()) return;
  ReadyRecord record;
  record.iteration = found->second->next_number;
  record.origin = world_.rank;
  record.joins = true;
  announce(std::move(record));
}

// Creates a placeholder for a decision that comes after this rank has joined.
bool ProcessSet::take_part_with_zeros(const Agreed& agreed, std::size_t unit) {
  const DescriptorRef& descriptor = agreed.decision.units[unit].descriptor;
  if (!undecided_.contains(kJoin) || table_.resolve(descriptor) == nullptr) return false;
  stand_in(agreed, unit);
  return stand_ins_.contains(agreed.keys[unit]);
}

// Memory of zeros. It is reused, since a rank that has joined needs it for every batch. At most one
// for each lane is kept. `memory` is null if the allocation failed.
Operation::Result ProcessSet::zeros_of(uint64_t bytes) {
  const auto is_better = [&](const Operation::Result& a, const Operation::Result& b) {
    return (a.bytes >= bytes) != (b.bytes >= bytes) ? a.bytes >= bytes : a.bytes < b.bytes;
  };
  Operation::Result zeros;
  const auto best = std::min_element(spare_zeros_.begin(), spare_zeros_.end(), is_better);
  if (best != spare_zeros_.end()) {
    zeros = std::move(*best);
    spare_zeros_.erase(best);
  }
  if (zeros.memory != nullptr && zeros.bytes >= bytes) {
    std::memset(zeros.memory.get(), 0, bytes);
    return zeros;
  }
  zeros.memory.reset();
  zeros.bytes = bytes;
  zeros.memory.reset(new (std::nothrow) std::byte[bytes]());
  return zeros;
}

void ProcessSet::keep_zeros(Operation& stand_in) {
  if (!undecided_.contains(kJoin) || spare_zeros_.size() >= lanes_.count) return;
  spare_zeros_.push_back(std::move(stand_in.zeros));
}

// Root: ends the join after all operations are decided that were ready before the last rank joined.
bool ProcessSet::end_join() {
  if (!is_root() || !readiness_.have_all_joined() || readiness_.has_news() ||
      readiness_.awaits_all() || decision_log_.waiting() || !catch_up_.empty()) {
    return false;
  }
  const AllJoinedMessage message = readiness_.all_joined();
  recurrence_.forget();  // the numbers of unnamed operations may change
  post_down(message);
  apply(message);
  return true;
}

void ProcessSet::handle(int, AllJoinedMessage& message) {
  post_down(message);
  apply(message);
}

void ProcessSet::apply(const AllJoinedMessage& message) {
  const auto found = undecided_.find(kJoin);
  if (found == undecided_.end()) {
    host_.broken_protocol(root(), "the end of a join that this rank has not begun");
    return;
  }
  const OperationRef operation = std::move(found->second);
  undecided_.erase(found);
  const int64_t last = ranks_[message.last];
  Operation::Result result{{}, sizeof last, std::make_unique<std::byte[]>(sizeof last)};
  std::memcpy(result.memory.get(), &last, sizeof last);
  operation->results.push_back(std::move(result));
  host_.number_from(number_, message.next_number);
  part();
  complete(operation, {});
}

// Ends the join on this rank.
void ProcessSet::part() {
  readiness_.part();
  spare_zeros_.clear();
}

}  // namespace rdmacoll
