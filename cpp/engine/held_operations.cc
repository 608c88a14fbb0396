#include "engine/held_operations.h"

#include <algorithm>
#include <iterator>
#include <span>
#include <utility>

#include "base/text.h"

namespace rdmacoll {
namespace {

bool is_unnamed(const Operation& operation) { return operation.request.name.empty(); }

// Whether the caller's stream has reached the operation. Afterwards the order is not needed.
Status ask(Operation& operation, bool& is_reached) {
  std::shared_ptr<StreamOrder>& order = operation.request.order;
  is_reached = order == nullptr;
  if (is_reached) return {};
  const Status status = order->reached(is_reached);
  if (!status.ok()) {
    return {status.code(),
            cat("the GPU work before ", operation.label(), " has failed: ", status.message())};
  }
  if (is_reached) order.reset();
  return {};
}

// Whether one of the held operations must come first.
bool follows_one(const Operation& operation, std::span<const OperationRef> held) {
  if (!is_unnamed(operation)) return false;
  const Request& request = operation.request;
  return std::ranges::any_of(held, [&](const OperationRef& earlier) {
    return earlier->request.set == request.set &&
           (request.kind == Kind::join || is_unnamed(*earlier));
  });
}

}  // namespace

Status HeldOperations::hold(const OperationRef& operation, bool& is_held) {
  is_held = true;
  bool is_reached = false;
  Status status;
  if (!follows_one(*operation, held_)) status = ask(*operation, is_reached);
  is_held = !is_reached;
  if (is_held) held_.push_back(operation);
  return status;
}

Status HeldOperations::release(std::vector<OperationRef>& ready) {
  Status failure;
  std::size_t kept = 0;
  for (OperationRef& operation : held_) {
    bool is_reached = false;
    const bool is_next = failure.ok() && !follows_one(*operation, std::span(held_).first(kept));
    if (is_next) failure = ask(*operation, is_reached);
    if (is_reached) {
      ready.push_back(std::move(operation));
    } else {
      std::swap(held_[kept++], operation);
    }
  }
  held_.resize(kept);
  return failure;
}

std::vector<OperationRef> HeldOperations::take(uint32_t set) {
  std::vector<OperationRef> taken;
  const auto is_other = [set](const OperationRef& one) { return one->request.set != set; };
  const auto of_set = std::stable_partition(held_.begin(), held_.end(), is_other);
  std::move(of_set, held_.end(), std::back_inserter(taken));
  held_.erase(of_set, held_.end());
  return taken;
}

std::vector<OperationRef> HeldOperations::take_all() { return std::exchange(held_, {}); }

std::size_t HeldOperations::count(uint32_t set) const {
  return static_cast<std::size_t>(std::ranges::count_if(held_, [set](const OperationRef& one) {
    return one->request.set == set && one->request.refusal.empty();
  }));
}

std::string HeldOperations::titles() const {
  std::vector<std::string> labels;
  for (const OperationRef& operation : held_) labels.push_back(operation->label());
  return join(labels, ", ");
}

bool HeldOperations::arm() {
  is_polled_ = false;
  for (std::size_t i = 0; i < held_.size(); ++i) {
    Operation& operation = *held_[i];
    if (follows_one(operation, std::span(held_).first(i))) continue;
    StreamOrder* const order = operation.request.order.get();
    if (order != nullptr && order->arm()) continue;
    bool is_reached = false;
    if (!ask(operation, is_reached).ok() || is_reached) return false;
    is_polled_ = true;
  }
  return true;
}

}  // namespace rdmacoll
