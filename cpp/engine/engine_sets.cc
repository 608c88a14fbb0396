// Adds and removes the process sets of an engine.
#include <algorithm>

#include "base/text.h"
#include "collectives/algorithms.h"
#include "engine/engine.h"
#include "engine/process_set.h"

namespace rdmacoll {
namespace {

World world_of(const World& job, uint32_t number, const SetMembers& members) {
  if (number == 0) return job.of_workers();
  World world{job.job,
              job.epoch,
              members.find(JobRank(job.rank)).value(),
              {},
              cat(" of process set ", number)};
  for (JobRank rank : members) {
    world.members.push_back(job.members[rank.index()]);
    world.members.back().number = job.number(rank.value());
  }
  return world;
}

}  // namespace

void Engine::make_set(uint32_t number, const SetMembers& members, const Lanes& lanes,
                      uint64_t bytes) {
  const int servers = number == 0 ? world_.servers : 0;
  const uint64_t room = bytes / (lanes.count * kSegmentsInFlight);
  executor_.open(lanes);
  SetHost& host = *this;
  sets_.push_back(std::make_unique<ProcessSet>(
      SetParts{number, world_, SetWorld(world_of(world_, number, members)), members, servers, lanes,
               room, config_, tuning_, transport_, pool_, gpu_work_, results_, executor_, log_},
      host, now_));
}

Status Engine::add_set(const std::vector<JobRank>& ranks, uint32_t& number) {
  RC_RETURN_IF_ERROR(table_.add(ranks, number));
  const SetTable::Entry& entry = *table_.find(number);
  const SetMembers members(ranks);
  const SetRank mine = members.find(me());
  if (!mine.is_none()) make_set(number, members, entry.lanes, entry.bytes);
  submissions_.open(number, mine, members);
  return {};
}

Status Engine::remove_set(uint32_t number) {
  if (table_.find(number) == nullptr) {
    return {Code::invalid, cat("there is no process set ", number, " to remove.")};
  }
  submissions_.close(number);
  take_submissions();
  if (ProcessSet* const set = find_set(number); set != nullptr) {
    const Status removed{Code::invalid,
                         cat("process set ", number, " was removed while the operation waited.")};
    end_held(held_.take(number), removed);
    set->agreement().end_undecided(removed);
    if (!now_.goes_on()) return now_.failure;
    if (!set->is_drained()) return Status::busy();
    removed_ += set->totals();
    executor_.close(table_.find(number)->lanes);
    std::erase_if(sets_, [&](const auto& one) { return one.get() == set; });
  }
  table_.remove(number);
  return {};
}

std::size_t Engine::in_flight(uint32_t number) {
  take_submissions();
  const ProcessSet* set = find_set(number);
  return set == nullptr ? 0 : in_flight(*set);
}

std::size_t Engine::in_flight(const ProcessSet& set) const {
  return set.in_flight() + held_.count(set.number());
}

ProcessSet* Engine::find_set(uint32_t number) {
  for (const auto& set : sets_) {
    if (set->number() == number) return set.get();
  }
  return nullptr;
}

SetTotals Engine::totals() const {
  SetTotals sum = removed_;
  for (const auto& set : sets_) sum += set->totals();
  return sum;
}

}  // namespace rdmacoll
