// Things of the driver that no call uses now, by the context or the GPU that they belong to.
#pragma once

#include <algorithm>
#include <map>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

namespace rdmacoll::cuda {

// Any thread may call it.
template <typename Key, typename Thing>
class FreeList {
 public:
  // Takes the thing that was given back last. Nothing: there is none.
  std::optional<Thing> take(const Key& key) {
    const std::lock_guard lock(mutex_);
    const auto found = things_.find(key);
    if (found == things_.end() || found->second.empty()) return {};
    const Thing thing = found->second.back();
    found->second.pop_back();
    return thing;
  }
  void give_back(const Key& key, Thing thing) {
    const std::lock_guard lock(mutex_);
    things_[key].push_back(std::move(thing));
  }
  // Whether there is a thing with a key for which `is_wanted` returns true.
  template <typename IsWanted>
  bool has(IsWanted is_wanted) {
    const std::lock_guard lock(mutex_);
    return std::ranges::any_of(
        things_, [&](const auto& one) { return !one.second.empty() && is_wanted(one.first); });
  }
  // Takes all things with such keys.
  template <typename IsWanted>
  std::map<Key, std::vector<Thing>> take_all(IsWanted is_wanted) {
    const std::lock_guard lock(mutex_);
    std::map<Key, std::vector<Thing>> taken;
    for (auto& [key, things] : things_) {
      if (is_wanted(key)) taken[key] = std::exchange(things, {});
    }
    return taken;
  }
  std::map<Key, std::vector<Thing>> take_all() {
    return take_all([](const Key&) { return true; });
  }

 private:
  std::mutex mutex_;
  std::map<Key, std::vector<Thing>> things_;
};

}  // namespace rdmacoll::cuda
