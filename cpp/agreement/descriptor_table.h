// Numbers for descriptors. The root assigns them, and every rank learns a number before it is used.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "agreement/messages.h"

namespace rdmacoll {

class DescriptorTable {
 public:
  // Beyond this limit descriptors travel in full. It bounds the memory of programs that invent new
  // names forever.
  static constexpr std::size_t kDescriptorsMax = 65536;

  // Root: the number of `bytes`. `is_new`: the root must send it to all ranks. Returns 0 if the
  // table is full.
  uint32_t intern(const std::string& bytes, bool& is_new) {
    is_new = false;
    if (const uint32_t id = find(bytes); id != 0) return id;
    if (texts_.size() >= kDescriptorsMax) return 0;
    is_new = true;
    add(static_cast<uint32_t>(texts_.size()) + 1, bytes);
    return static_cast<uint32_t>(texts_.size());
  }
  // The other ranks: numbers must arrive in order.
  bool is_next(uint32_t id) const {
    return id == texts_.size() + 1 && texts_.size() < kDescriptorsMax;
  }
  bool add(uint32_t id, const std::string& bytes) {
    if (!is_next(id)) return false;
    texts_.push_back(bytes);
    ids_.emplace(bytes, id);
    return true;
  }
  uint32_t find(const std::string& bytes) const {
    const auto found = ids_.find(bytes);
    return found == ids_.end() ? 0 : found->second;
  }
  DescriptorRef refer(const std::string& bytes) const {
    const uint32_t id = find(bytes);
    return id != 0 ? DescriptorRef{id, {}} : DescriptorRef{0, bytes};
  }
  // Returns null for a number that was never assigned.
  const std::string* resolve(const DescriptorRef& descriptor) const {
    return descriptor.id == 0 ? &descriptor.bytes : text(descriptor.id);
  }
  const std::string* text(uint32_t id) const {
    return id > 0 && id <= texts_.size() ? &texts_[id - 1] : nullptr;
  }

 private:
  std::vector<std::string> texts_;
  std::unordered_map<std::string, uint32_t> ids_;
};

}  // namespace rdmacoll
