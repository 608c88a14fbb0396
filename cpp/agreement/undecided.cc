#include "agreement/undecided.h"

#include <utility>
#include <vector>

#include "operation/cut.h"

namespace rdmacoll {

const UnitKey& Undecided::join_key() {
  static const UnitKey kJoin{"", kJoinIteration};
  return kJoin;
}

bool Undecided::is_on_gpu(const UnitKey& key) const {
  const auto found = all_.find(key);
  if (found == all_.end()) return false;
  const std::vector<TensorRef>& tensors = found->second->request.tensors;
  return !tensors.empty() && tensors.front().gpu != kHost;
}

OperationRef Undecided::take(const UnitKey& key) {
  auto taken = all_.extract(key);
  return taken.empty() ? nullptr : std::move(taken.mapped());
}

void Undecided::announce(const OperationRef& operation) {
  const Request& request = operation->request;
  const SetWorld& world = parts_.world;
  ReadyRecord record{parts_.table.refer(operation->descriptor),
                     request.iteration,
                     world.rank(),
                     parts_.tree.is_leaf(),
                     {}};
  if (record.descriptor.id == 0 || request.name.empty()) record.labels = request.labels();
  record.listing = parts_.names.say(*operation);
  record.age = parts_.now.turned_at - operation->state.taken_at;
  std::vector<int64_t> rows;  // a refusal has no rows
  if (request.refusal.empty()) rows = own_rows(request, world.rank(), world.size());
  if (!rows.empty()) record.rows.emplace_back(world.rank(), std::move(rows));
  announce(record);
}

void Undecided::announce(const ReadyRecord& record) {
  if (parts_.readiness.add(record, parts_.now.turned_at)) return;
  // This rank says all once. A message that the gate could not refuse has ended an operation
  // early.
  parts_.host.broken_protocol(parts_.last_sender,
                              "a message that contradicts what this rank has announced");
}

void Undecided::announce_join() {
  const auto join = all_.find(join_key());
  if (join == all_.end()) return;
  ReadyRecord record;
  record.iteration = join->second->next_number;
  record.origin = parts_.world.rank();
  record.joins = true;
  announce(record);
}

void Undecided::announce_all() {
  for (const auto& [key, operation] : all_) {
    if (key != join_key()) announce(operation);
  }
}

}  // namespace rdmacoll
