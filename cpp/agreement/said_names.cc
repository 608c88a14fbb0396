#include "agreement/said_names.h"

#include "operation/listing.h"

namespace rdmacoll {
namespace {

constexpr std::size_t kNamesMax = 4096;  // the number of operations whose names are kept

const std::string& key_of_names(const Operation& operation) {
  return operation.request.name.empty() ? operation.descriptor : operation.request.name;
}

}  // namespace

bool SaidNames::has_new(const Operation& operation) const {
  if (operation.request.listing.empty() || !checks_ || operation.state.has_said_names) return false;
  const auto said = said_.find(key_of_names(operation));
  if (said == said_.end()) return said_.size() < kNamesMax;
  return said->second.digests != digests_of(operation.request.listing);
}

std::string SaidNames::say(Operation& operation) {
  const bool is_new = has_new(operation);
  operation.state.has_said_names = true;
  if (!is_new) return {};
  said_[key_of_names(operation)] = {std::string(digests_of(operation.request.listing)), false};
  return operation.request.listing;
}

void SaidNames::ended(const Operation& operation, bool is_agreed) {
  if (operation.request.listing.empty()) return;
  const auto said = said_.find(key_of_names(operation));
  if (said == said_.end()) return;
  if (!is_agreed) {
    said_.erase(said);
  } else if (said->second.digests == digests_of(operation.request.listing)) {
    said->second.is_heard = true;
  }
}

void SaidNames::forget_unheard() {
  std::erase_if(said_, [](const auto& entry) { return !entry.second.is_heard; });
}

}  // namespace rdmacoll
