#include "engine/submissions.h"

#include <algorithm>
#include <bit>

#include "base/text.h"

namespace rdmacoll {
namespace {

// So many changes of the thread among 64 unnamed operations are reported.
constexpr int kThreadChanges = 16;

std::string title(const Request& request) {
  const std::string_view kind = name_of(request.kind);
  return request.name.empty() ? cat("an unnamed ", kind) : cat(kind, " '", request.name, "'");
}

}  // namespace

void Submissions::open(uint32_t set, SetRank rank, SetMembers members) {
  const std::lock_guard lock(mutex_);
  sets_[set].rank = rank;
  sets_[set].members = std::move(members);
}

void Submissions::close(uint32_t set) {
  const std::lock_guard lock(mutex_);
  const auto state = sets_.find(set);
  if (state == sets_.end()) return;
  for (auto& [key, name_queue] : state->second.by_name) {
    for (OperationRef& next : name_queue.waiting) {
      // the others end with the first one of their group
      if (!next->state.awaits_first) queue(std::move(next));
    }
  }
  sets_.erase(state);
}

Status Submissions::find_set(const Request& request, SetState*& state) const {
  if (!is_known(request.kind)) return {Code::invalid, "unknown kind of collective."};
  const auto found = sets_.find(request.set);
  if (found == sets_.end()) {
    return {Code::invalid, cat("there is no process set ", request.set, " for ", title(request),
                               ": it was removed, or never added.")};
  }
  state = &found->second;
  if (!state->rank.is_none()) return {};
  return {Code::invalid, cat("this rank is not in process set ", request.set, " (ranks ",
                             join(state->members, ", "), ") and takes no part in ", title(request),
                             " there: ask included() before calling.")};
}

Status Submissions::check(const Request& request) const {
  SetRank rank;
  int ranks = 0;
  {
    const std::lock_guard lock(mutex_);
    SetState* state = nullptr;
    RC_RETURN_IF_ERROR(find_set(request, state));
    rank = state->rank;
    ranks = state->members.size();
  }
  return rdmacoll::check(request, rank, ranks);
}

SetRank Submissions::rank_in(uint32_t set, JobRank rank) const {
  const std::lock_guard lock(mutex_);
  const auto found = sets_.find(set);
  return found == sets_.end() ? SetRank() : found->second.members.find(rank);
}

Status Submissions::add(const OperationRef& operation) {
  const std::lock_guard lock(mutex_);
  bool waits = false;
  RC_RETURN_IF_ERROR(number(operation, waits));
  if (!waits) queue(operation);
  return {};
}

Status Submissions::add_and_drain(const OperationRef& operation,
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

// Ranks match unnamed operations by their order, and threads of another rank may have another one.
// Threads that a program starts one after the other change seldom.
void Submissions::watch_threads(SetState& state) const {
  const std::thread::id thread = std::this_thread::get_id();
  const bool is_other = state.unnamed > 0 && state.thread != thread;
  state.thread = thread;
  state.changes = state.changes << 1 | static_cast<uint64_t>(is_other);
  if (!is_other || state.has_warned || state.members.size() == 1) return;
  if (std::popcount(state.changes) < kThreadChanges) return;
  state.has_warned = true;
  log_.warning(
      "several threads take turns in submitting operations without names. Ranks match such "
      "operations by their order, so results are mixed up if threads of another rank take other "
      "turns. Give each a name (name=), the same on all ranks.");
}

Status Submissions::number(const OperationRef& operation, bool& waits) {
  if (!closed_.ok()) return closed_;
  Request& request = operation->request;
  SetState* state = nullptr;
  RC_RETURN_IF_ERROR(find_set(request, state));
  if (state->has_joined) {
    return {Code::invalid,
            cat("this rank has joined", request.set == 0 ? "" : cat(" process set ", request.set),
                " and cannot submit ", operation->label(),
                ": join() says that it has no data left. Wait for join() to return first.")};
  }
  if (request.kind == Kind::join) {
    state->has_joined = true;
    request.iteration = kJoinIteration;
    operation->next_number = state->unnamed;
    return {};
  }
  RC_RETURN_IF_ERROR(check_names(*state, *operation));
  if (request.name.empty()) {
    watch_threads(*state);
    request.iteration = state->unnamed++;
  } else {
    waits = enter_name_queue(*state, operation);
  }
  for (const OperationRef& next : operation->behind) enter_name_queue(*state, next);
  return {};
}

// Refuses names that are in flight. A refusal may wait behind an operation of its name. So may
// parts of unnamed groups, since all ranks share the order of the groups.
Status Submissions::check_names(const SetState& state, const Operation& operation) {
  const Request& request = operation.request;
  if (request.name.empty() || !request.refusal.empty()) return {};
  const auto check = [&](const Request& next) -> Status {
    const auto name_queue = state.by_name.find({next.name, next.iteration});
    if (name_queue == state.by_name.end() || name_queue->second.calls == 0) return {};
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

bool Submissions::enter_name_queue(SetState& state, const OperationRef& operation) {
  const Request& request = operation->request;
  NameQueue& name_queue = state.by_name[{request.name, request.iteration}];
  if (request.refusal.empty()) ++name_queue.calls;
  if (!name_queue.is_in_flight && name_queue.waiting.empty() && !operation->state.awaits_first) {
    name_queue.is_in_flight = true;
    return false;
  }
  name_queue.waiting.push_back(operation);
  return true;
}

void Submissions::advance(SetState& state, std::map<Key, NameQueue>::iterator at) {
  NameQueue& name_queue = at->second;
  if (name_queue.is_in_flight) return;
  if (name_queue.waiting.empty()) {
    state.by_name.erase(at);
  } else if (!name_queue.waiting.front()->state.awaits_first) {
    name_queue.is_in_flight = true;
    queue(std::move(name_queue.waiting.front()));
    name_queue.waiting.erase(name_queue.waiting.begin());
  }
}

Status Submissions::release(const OperationRef& operation, Status first) {
  const std::lock_guard lock(mutex_);
  operation->state.awaits_first = false;
  const Request& request = operation->request;
  const auto state = sets_.find(request.set);
  if (first.ok()) first = closed_;
  if (state == sets_.end()) {
    return first.ok()
               ? Status(Code::invalid, cat("process set ", request.set, " was removed while ",
                                           operation->label(), " waited."))
               : first;
  }
  const auto name_queue = state->second.by_name.find({request.name, request.iteration});
  if (!first.ok()) {
    --name_queue->second.calls;
    std::erase(name_queue->second.waiting, operation);
  }
  advance(state->second, name_queue);
  return first;
}

void Submissions::set_next_number(uint32_t set, int64_t number) {
  const std::lock_guard lock(mutex_);
  const auto state = sets_.find(set);
  if (state == sets_.end()) return;
  state->second.unnamed = number;
}

void Submissions::forget(const Operation& operation) {
  const Request& request = operation.request;
  if (request.name.empty() && request.kind != Kind::join) return;
  const std::lock_guard lock(mutex_);
  const auto state = sets_.find(request.set);
  if (state == sets_.end()) return;
  if (request.kind == Kind::join) state->second.has_joined = false;
  const auto name_queue = state->second.by_name.find({request.name, request.iteration});
  if (name_queue == state->second.by_name.end()) return;
  name_queue->second.is_in_flight = false;
  if (request.refusal.empty()) --name_queue->second.calls;
  advance(state->second, name_queue);
}

}  // namespace rdmacoll
