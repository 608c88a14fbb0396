// Whether a simulated rank has the right results, or the errors that the fault explains.
#include <algorithm>
#include <cstring>

#include "base/text.h"
#include "sim/rank.h"

namespace rdmacoll {

// No rank may have a result before all ranks have begun the operation.
void SimRank::check_begun(const Task& task) {
  const int ranks = script_.ranks_of(task.script->set);
  int givers = 0;
  for (int rank = 0; rank < ranks; ++rank) givers += task.script->is_given_by(rank, ranks) ? 1 : 0;
  const int begun = trace_.begun(task.phase, task.index);
  if (begun == givers) return;
  wrong_ = cat("rank ", rank_, " has ended ", label(task), " when ", begun, " of ", givers,
               " ranks had begun it");
}

std::string SimRank::label(const Task& task) const {
  const SimOperation& operation = *task.script;
  return cat(name_of(operation.kind), " ", task.index, " of phase ", task.phase,
             operation.name.empty() ? "" : cat(" '", operation.name, "'"));
}

void SimRank::check(Task& task) {
  const Status& status = task.operation->status();
  if (!status.ok()) {
    judge(task, status);
  } else {
    const std::string complaint = error_of(task);
    if (trace_.is_printed()) {
      print(cat("has ", label(task), ": ", complaint.empty() ? "right" : complaint));
    }
    if (!complaint.empty()) {
      wrong_ =
          cat("rank ", rank_, " phase ", task.phase, " operation ", task.index, ": ", complaint);
    }
  }
  // Overwrites the memory. A later access shows as a wrong sum, or in the sanitizer.
  for (auto& input : task.memory.inputs) std::fill(input.begin(), input.end(), std::byte{0xee});
  for (auto& output : task.memory.outputs) std::fill(output.begin(), output.end(), std::byte{0xee});
  for (const TensorRef& tensor : task.operation->request.tensors) {
    if (tensor.gpu == kHost) continue;
    gpus_.overwrite(tensor, task.operation->request.dtype);
    if (status.ok()) gpus_.free(tensor);  // later tensors lie at the same addresses
  }
}

std::string SimRank::error_of(const Task& task) {
  const SimOperation& script = *task.script;
  const int ranks = script_.ranks_of(script.set);
  if (script.is_refused(ranks)) return "has succeeded without data of ranks that have joined";
  if (script.kind != Kind::join) {
    return sim_error(script, ranks, script_.rank_in(script.set, rank_), *task.operation, &gpus_);
  }
  int64_t last = -1;
  std::memcpy(&last, task.operation->results[0].memory.get(), sizeof last);
  last_joined_[task.phase] = last;
  const bool is_member = script_.rank_in(script.set, static_cast<int>(last)) >= 0;
  return is_member ? "" : cat("join says that rank ", last, " was the last");
}

void SimRank::judge(const Task& task, const Status& status) {
  if (trace_.is_printed()) print(cat("has ", label(task), ": ", status.message()));
  if (is_expected(task, status)) return;
  unnamed_ =
      cat("rank ", rank_, " phase ", task.phase, " operation ", task.index, ": ", status.to_json());
  failed_ = true;
}

// Whether the fault explains this error.
bool SimRank::is_expected(const Task& task, const Status& status) {
  const ErrorDetail& detail = status.detail();
  const int named = detail.rank.value();
  const bool is_failure = status.code() == Code::rank_failed;
  const int ranks = script_.ranks_of(task.script->set);
  if (status.code() == Code::invalid && task.script->is_refused(ranks)) return true;
  switch (script_.fault) {
    case Fault::none:
    case Fault::nap:
      return false;
    case Fault::mismatch:
      if (is_failure) {  // another rank ended because of the error
        failed_ = true;
        return detail.cause.find("left") != std::string::npos;
      }
      return status.code() == Code::mismatch && task.phase == script_.fault_phase &&
             task.index == script_.fault_operation;
    case Fault::missing: {
      // The missing operation's error names the victim, which stalls or has ended. Meanwhile the
      // victim has continued alone, so later operations may stall on either side.
      failed_ = is_failure;
      const bool is_it = task.script->name == "missing" && task.phase == script_.fault_phase;
      // Ranks outside this set may have stalled in another one, and left first.
      const bool has_left = !script_.sets.empty() && is_failure;
      return (status.code() == Code::stalled || is_failure) &&
             (!is_it || has_left || detail.ranks == std::vector<JobRank>{JobRank(script_.victim)});
    }
    case Fault::cut:
      failed_ = true;
      return is_failure && (named == script_.victim || named == script_.partner);
    case Fault::late:
      failed_ = true;
      return is_of_previous_world(status);
    case Fault::leave:
      failed_ = true;
      return is_failure && (is_victim() || (named == script_.victim &&
                                            detail.cause.find("ValueError") != std::string::npos));
    default:  // the victim may blame any rank, since it was cut off from all
      failed_ = true;
      return is_failure && (named == script_.victim || is_victim());
  }
}

// A rank that leaves with its results must not name a rank that has ended because of the fault.
void SimRank::judge_late_failure() {
  const Status late = engine_->late_failure();
  if (late.ok()) return;
  print(cat("leaves in spite of: ", late.message()));
  const int named = late.detail().rank.value();
  const bool is_harmless = script_.fault == Fault::none || script_.fault == Fault::nap;
  const bool is_told = script_.hits_a_rank() || script_.fault == Fault::leave;
  const bool is_cut_off = is_victim() && script_.fault != Fault::leave;
  const bool is_named =
      named == script_.victim || (script_.fault == Fault::cut && named == script_.partner);
  if (is_harmless || (is_told && !is_cut_off && !is_named)) {
    unnamed_ = cat("rank ", rank_, " leaves in spite of: ", late.to_json());
  }
}

// Whether a control message of the previous world ended this one. The error must name the old
// epoch, and the sender.
bool SimRank::is_of_previous_world(const Status& status) const {
  const ErrorDetail& detail = status.detail();
  return status.code() == Code::rank_failed && network_.has_come_late_from(detail.rank.value()) &&
         detail.cause.find(cat("of epoch ", script_.epoch - 1)) != std::string::npos;
}

}  // namespace rdmacoll
