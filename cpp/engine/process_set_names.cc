// Variable names. Each rank sends them once, with the first operation that has them, and again when
// they change.
#include "engine/process_set.h"
#include "operation/listing.h"

namespace rdmacoll {
namespace {

constexpr std::size_t kNamesMax = 4096;  // the number of operations whose names are kept

const std::string& key_of(const Operation& operation) {
  return operation.request.name.empty() ? operation.descriptor : operation.request.name;
}

}  // namespace

bool ProcessSet::has_new_names(const Operation& operation) const {
  if (operation.request.listing.empty() || !checks_names_ || operation.has_said_names) return false;
  const auto said = said_names_.find(key_of(operation));
  if (said == said_names_.end()) return said_names_.size() < kNamesMax;
  return said->second.digests != digests_of(operation.request.listing);
}

std::string ProcessSet::names_to_say(Operation& operation) {
  const bool is_new = has_new_names(operation);
  operation.has_said_names = true;
  if (!is_new) return {};
  said_names_[key_of(operation)] = {std::string(digests_of(operation.request.listing)), false};
  return operation.request.listing;
}

void ProcessSet::note_names_heard(const Operation& operation, bool is_agreed) {
  if (operation.request.listing.empty()) return;
  const auto said = said_names_.find(key_of(operation));
  if (said == said_names_.end()) return;
  if (!is_agreed) {
    said_names_.erase(said);
  } else if (said->second.digests == digests_of(operation.request.listing)) {
    said->second.is_heard = true;
  }
}

// Names that were sent without a decision are void.
void ProcessSet::forget_unheard_names() {
  std::erase_if(said_names_, [](const auto& entry) { return !entry.second.is_heard; });
  for (const auto& [key, operation] : undecided_) operation->has_said_names = false;
}

}  // namespace rdmacoll
