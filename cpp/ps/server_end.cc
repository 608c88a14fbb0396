// The end of workers, and the state of a server.
#include <algorithm>
#include <climits>
#include <utility>

#include "base/text.h"
#include "ps/server.h"

namespace rdmacoll::ps {

void Server::peer_failed(int peer, const std::string& cause) {
  for (std::size_t i = 0; i < workers_.size(); ++i) {
    if (workers_[i].rank == peer && workers_[i].is_there)
      lose(WorkerRank(static_cast<int>(i)), cause);
    if (workers_[i].rank == peer) release(workers_[i]);
  }
}

// Handled before the worker's open requests, which will not end.
void Server::take_reason(const Request& leave) {
  const int lost =
      leave.step > INT_MAX ? -1 : world_.rank_of(JobRank(static_cast<int>(leave.step)));
  if (failure_.ok() && lost >= 0) failure_ = world_.blaming(lost, leave.text, leave.text);
}

void Server::hang_up(WorkerRank which, const std::string& cause) {
  transport_.fail(workers_[which.index()].rank);
  lose(which, cause);
}

void Server::lose(WorkerRank which, const std::string& cause) {
  Worker& worker = workers_[which.index()];
  worker.is_there = false;
  worker.is_waiting = false;
  pace_.end(which);
  ++lost_;
  release(worker);
  if (!options_.reports_losses) return;
  const auto there = std::count_if(workers_.begin(), workers_.end(),
                                   [](const Worker& one) { return one.is_there; });
  const std::string rest =
      there == 0 ? "It was the last worker, so the server ends."
                 : cat("The server goes on with ", there, there == 1 ? " worker." : " workers.");
  losses_.push_back(cat(world_.failed(worker.rank, cause).message(), ". ", rest));
}

void Server::release(Worker& worker) {
  worker.requests.clear();
  worker.job.reset();
  worker.outbox.clear();
  worker.unreleased.clear();
  for (Buffer& buffer : worker.buffers) free(buffer);
}

void Server::free(Buffer& buffer) {
  pool_.free(buffer.data);
  buffer = {};
}

bool Server::is_done() const {
  return std::all_of(workers_.begin(), workers_.end(), [](const Worker& worker) {
    return !worker.is_there && worker.outbox.empty() && worker.unreleased.empty() && !worker.job;
  });
}

void Server::leave(const std::string& cause) {
  for (Worker& worker : workers_) {
    if (worker.is_there) answer(worker, 0, Answer::Kind::leaving, cause);
  }
}

bool Server::has_informed_workers() const {
  return std::all_of(workers_.begin(), workers_.end(),
                     [](const Worker& worker) { return worker.outbox.empty(); });
}

std::vector<std::string> Server::take_losses() { return std::exchange(losses_, {}); }

// "checkpoint PATH", or "values NAME", which may hold back other workers. "pace" is returned by the
// first server only, since all servers have the same pace.
std::string Server::what_waits() const {
  bool waits = false;
  for (const Worker& worker : workers_) {
    if (!worker.is_waiting || worker.requests.empty()) continue;
    waits = true;
    if (!saving_.is_none() && workers_[saving_.index()].job) {
      return cat("checkpoint ", workers_[saving_.index()].job->request.text);
    }
    if (const StoredSpec* const spec = first_without_values(worker.requests.front())) {
      return cat("values ", spec->name);
    }
  }
  return waits && options_.number == 0 ? "pace" : "";
}

std::string Server::stats_json() const {
  std::size_t there = 0, waiting = 0;
  for (const Worker& worker : workers_) {
    there += worker.is_there ? 1 : 0;
    waiting += worker.is_waiting ? 1 : 0;
  }
  return cat("{\"updates\": ", updates_, ", \"bytes_received\": ", bytes_received_,
             ", \"bytes_sent\": ", bytes_sent_, ", \"stored_bytes\": ", store_.bytes(),
             ", \"variables\": ", store_.variables(), ", \"workers\": ", there,
             ", \"waiting\": ", waiting, ", \"waiting_for\": ", json_quote(what_waits()),
             ", \"lost\": ", lost_, "}");
}

}  // namespace rdmacoll::ps
