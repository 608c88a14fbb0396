#include "engine/submissions.h"

#include <algorithm>

#include "base/text.h"

namespace rdmacoll {
namespace {

std::string title(const Request& request) {
  const std::string_view kind = name_of(request.kind);
  return request.name.empty() ? cat("an unnamed ", kind) : cat(kind, " '", request.name, "'");
}

}  // namespace

void Submissions::open(uint32_t set, int rank, std::vector<int> ranks) {
  const std::lock_guard lock(mutex_);
  doors_[set].rank = rank;
  doors_[set].ranks = std::move(ranks);
}

void Submissions::close(uint32_t set) {
  const std::lock_guard lock(mutex_);
  const auto door = doors_.find(set);
  if (door == doors_.end()) return;
  for (auto& [key, line] : door->second.lines) {
    for (OperationRef& next : line.waiting) {
      // the others end with the first one of their group
      if (!next->state.awaits_first) queue(std::move(next));
    }
  }
  doors_.erase(door);
}

Status Submissions::find_door(const Request& request, Door*& door) const {
  if (!is_known(request.kind)) return {Code::invalid, "unknown kind of collective."};
  const auto found = doors_.find(request.set);
  if (found == doors_.end()) {
    return {Code::invalid, cat("there is no process set ", request.set, " for ", title(request),
                               ": it was removed, or never added.")};
  }
  door = &found->second;
  if (door->rank >= 0) return {};
  return {Code::invalid,
          cat("this rank is not in process set ", request.set, " (ranks ", join(door->ranks, ", "),
              ") and takes no part in ", title(request), " there: ask included() before calling.")};
}

Status Submissions::find(const Request& request, Place& place) const {
  const std::lock_guard lock(mutex_);
  Door* door = nullptr;
  RC_RETURN_IF_ERROR(find_door(request, door));
  place = {door->rank, static_cast<int>(door->ranks.size())};
  return {};
}

int Submissions::rank_in(uint32_t set, int rank) const {
  const std::lock_guard lock(mutex_);
  const auto found = doors_.find(set);
  if (found == doors_.end()) return -1;
  const std::vector<int>& ranks = found->second.ranks;
  const auto at = std::find(ranks.begin(), ranks.end(), rank);
  return at == ranks.end() ? -1 : static_cast<int>(at - ranks.begin());
}

Status Submissions::add(const OperationRef& operation) {
  const std::lock_guard lock(mutex_);
  bool waits = false;
  RC_RETURN_IF_ERROR(number(operation, waits));
  if (!waits) queue(operation);
  return {};
}

Status Submissions::add_behind(const OperationRef& operation,
                               std::vector<OperationRef>& operations) {
  const std::lock_guard lock(mutex_);
  bool waits = false;
  RC_RETURN_IF_ERROR(number(operation, waits));
  if (!queue_.empty()) move_to(operations);
  if (!waits) operations.push_back(operation);
  return {};
}

void Submissions::queue(OperationRef operation) {
  queue_.push_back(std::move(operation));
  waiting_.store(true, std::memory_order_seq_cst);
}

Status Submissions::number(const OperationRef& operation, bool& waits) {
  if (!closed_.ok()) return closed_;
  Request& request = operation->request;
  Door* door = nullptr;
  RC_RETURN_IF_ERROR(find_door(request, door));
  if (door->has_joined) {
    return {Code::invalid,
            cat("this rank has joined", request.set == 0 ? "" : cat(" process set ", request.set),
                " and cannot submit ", operation->label(),
                ": join() says that it has no data left. Wait for join() to return first.")};
  }
  if (request.kind == Kind::join) {
    door->has_joined = true;
    request.iteration = kJoinIteration;
    operation->next_number = door->unnamed;
    return {};
  }
  RC_RETURN_IF_ERROR(check_names(*door, *operation));
  if (request.name.empty()) {
    request.iteration = door->unnamed++;
  } else {
    waits = waits_in_line(*door, operation);
  }
  for (const OperationRef& next : operation->behind) waits_in_line(*door, next);
  return {};
}

// Refuses names that are in flight. A refusal may wait behind an operation of its name. So may
// parts of unnamed groups, since all ranks share the order of the groups.
Status Submissions::check_names(const Door& door, const Operation& operation) {
  const Request& request = operation.request;
  if (request.name.empty() || !request.refusal.empty()) return {};
  const auto check = [&](const Request& next) -> Status {
    const auto line = door.lines.find({next.name, next.iteration});
    if (line == door.lines.end() || line->second.calls == 0) return {};
    ErrorDetail detail;
    detail.tensor = next.name;
    return {Code::duplicate,
            "the name '" + next.name +
                "' is in flight already. Wait for the first operation, or give another name.",
            detail};
  };
  RC_RETURN_IF_ERROR(check(request));
  for (const OperationRef& next : operation.behind) RC_RETURN_IF_ERROR(check(next->request));
  return {};
}

bool Submissions::waits_in_line(Door& door, const OperationRef& operation) {
  const Request& request = operation->request;
  Line& line = door.lines[{request.name, request.iteration}];
  if (request.refusal.empty()) ++line.calls;
  if (!line.is_in_flight && line.waiting.empty() && !operation->state.awaits_first) {
    line.is_in_flight = true;
    return false;
  }
  line.waiting.push_back(operation);
  return true;
}

void Submissions::advance(Door& door, std::map<Key, Line>::iterator at) {
  Line& line = at->second;
  if (line.is_in_flight) return;
  if (line.waiting.empty()) {
    door.lines.erase(at);
  } else if (!line.waiting.front()->state.awaits_first) {
    line.is_in_flight = true;
    queue(std::move(line.waiting.front()));
    line.waiting.erase(line.waiting.begin());
  }
}

Status Submissions::release(const OperationRef& operation, Status first) {
  const std::lock_guard lock(mutex_);
  operation->state.awaits_first = false;
  const Request& request = operation->request;
  const auto door = doors_.find(request.set);
  if (first.ok()) first = closed_;
  if (door == doors_.end()) {
    return first.ok()
               ? Status(Code::invalid, cat("process set ", request.set, " was removed while ",
                                           operation->label(), " waited."))
               : first;
  }
  const auto line = door->second.lines.find({request.name, request.iteration});
  if (!first.ok()) {
    --line->second.calls;
    std::erase(line->second.waiting, operation);
  }
  advance(door->second, line);
  return first;
}

void Submissions::number_from(uint32_t set, int64_t number) {
  const std::lock_guard lock(mutex_);
  const auto door = doors_.find(set);
  if (door == doors_.end()) return;
  door->second.unnamed = number;
}

void Submissions::forget(const Operation& operation) {
  const Request& request = operation.request;
  if (request.name.empty() && request.kind != Kind::join) return;
  const std::lock_guard lock(mutex_);
  const auto door = doors_.find(request.set);
  if (door == doors_.end()) return;
  if (request.kind == Kind::join) door->second.has_joined = false;
  const auto line = door->second.lines.find({request.name, request.iteration});
  if (line == door->second.lines.end()) return;
  line->second.is_in_flight = false;
  if (request.refusal.empty()) --line->second.calls;
  advance(door->second, line);
}

}  // namespace rdmacoll
