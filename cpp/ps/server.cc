#include "ps/server.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include "base/text.h"

namespace rdmacoll::ps {
namespace {

// The first worker sends the initial values.
constexpr WorkerRank kFirstWorker{0};
// The limit for a worker's open requests. A correct client has fewer.
constexpr std::size_t kRequestsMax = 64;

bool needs_values(RequestKind kind) {
  return kind >= RequestKind::push && kind <= RequestKind::updates;
}
bool is_checkpoint(RequestKind kind) {
  return kind == RequestKind::save || kind == RequestKind::restore;
}

}  // namespace

Server::Server(Transport& transport, const World& world, MemoryPool& pool, ServerOptions options)
    : transport_(transport),
      world_(world),
      pool_(pool),
      options_(std::move(options)),
      pace_(options_.workers.size(), options_.staleness),
      workers_(options_.workers.size()) {
  for (std::size_t i = 0; i < workers_.size(); ++i) workers_[i].rank = options_.workers[i];
}

Server::~Server() {
  for (Worker& worker : workers_) release(worker);
}

bool Server::turn() {
  bool moved = transport_.poll(*this);
  if (!saving_.is_none() && !workers_[saving_.index()].job) saving_ = {};
  for (std::size_t i = 0; i < workers_.size(); ++i) {
    const WorkerRank which(static_cast<int>(i));
    if (saving_.is_none() || saving_ == which) {
      moved |= serve(which);
    } else {
      workers_[i].is_waiting = !workers_[i].requests.empty() && !workers_[i].job;
      moved |= say(workers_[i]);
    }
  }
  return moved;
}

bool Server::step_checkpoint(Worker& worker) {
  Job& job = *worker.job;
  const Status stepped = job.checkpoint->step();
  if (stepped.is_busy()) return true;
  job.refusal = stepped;
  job.checkpoint.reset();
  if (stepped.ok() && job.request.kind == RequestKind::restore) overtake_jobs();
  return end_job(worker);
}

// Requests that began before a restore. Their update numbers belong to the old values.
void Server::overtake_jobs() {
  for (Worker& worker : workers_) {
    if (!worker.job) continue;
    Job& job = *worker.job;
    job.is_overtaken = makes_update(job.request.kind);
    for (std::size_t i = 0; i < job.steps.size(); ++i) {
      job.steps[i] = store_.updates(job.request.items[i].variable);
    }
  }
}

bool Server::serve(WorkerRank which) {
  Worker& worker = workers_[which.index()];
  bool moved = false;
  if (worker.has_broken_protocol && worker.is_there) {
    hang_up(which, "it sent an invalid request: install one version of rdmacoll everywhere");
  }
  while (worker.is_there && !worker.job && may_begin(which)) {
    worker.job = Job{.request = std::move(worker.requests.front())};
    worker.requests.pop_front();
    const Status begun = begin(which, *worker.job);
    if (!begun.ok()) {
      hang_up(which, begun.message());
    } else {
      end_job(worker);
    }
    moved = true;
  }
  left_ = kElementsAtOnce;
  if (worker.job && worker.job->checkpoint) {
    moved |= step_checkpoint(worker);
  } else if (worker.job && worker.job->request.kind == RequestKind::declare) {
    store_.fill(left_);
    moved = true;
    end_job(worker);
  } else if (worker.job && !catch_up(*worker.job)) {
    moved = true;
  } else if (worker.job) {
    moved |= begin_chunks(which);
    moved |= work(worker);
    moved |= send_chunks(which);
  }
  return say(worker) || moved;
}

const StoredSpec* Server::first_without_values(const Request& request) const {
  if (!needs_values(request.kind)) return nullptr;
  for (const Item& item : request.items) {
    if (item.variable < store_.variables() && !store_.is_initialized(item.variable)) {
      return &store_.spec(item.variable);
    }
  }
  return nullptr;
}

// Such a save would destroy the values of variables when it is restored.
const StoredSpec* Server::first_unsaved(RequestKind kind) const {
  for (std::size_t i = 0; kind == RequestKind::save && i < store_.variables(); ++i) {
    if (!store_.is_initialized(i)) return &store_.spec(i);
  }
  return nullptr;
}

// Requests that may not begin yet stay first in the worker's queue.
bool Server::may_begin(WorkerRank which) {
  Worker& worker = workers_[which.index()];
  worker.is_waiting = false;
  // A worker that reads no answers receives no more of them.
  if (worker.requests.empty() || worker.outbox.size() >= kRequestsMax) return false;
  const Request& request = worker.requests.front();
  if (which != kFirstWorker && workers_[kFirstWorker.index()].is_there &&
      first_without_values(request) != nullptr) {
    worker.is_waiting = true;
  } else if (needs_values(request.kind)) {
    worker.is_waiting = !pace_.may_go(request.step);
  }
  return !worker.is_waiting;
}

// An error means that no rdmacoll client sent the request. The size of its data is unknown, so the
// connection is closed.
Status Server::begin(WorkerRank which, Job& job) {
  const Request& request = job.request;
  std::string text;
  if (request.chunk_bytes > options_.chunk_bytes_max) {
    return {Code::failed, cat("asked for chunks of ", request.chunk_bytes, " bytes instead of ",
                              options_.chunk_bytes_max)};
  }
  if (request.kind == RequestKind::declare) {
    job.refusal = declare(request, text);
  } else if (const StoredSpec* const bare = first_unsaved(request.kind)) {
    job.refusal = {Code::invalid, cat("variable ", bare->name,
                                      " has no values yet: save once worker 0 has declared it.")};
  } else if (is_checkpoint(request.kind)) {
    const auto action =
        request.kind == RequestKind::save ? Checkpoint::Action::save : Checkpoint::Action::restore;
    job.checkpoint = std::make_unique<Checkpoint>(
        action, checkpoint_path(request.text, options_.number, options_.servers), store_,
        request.step);
    saving_ = which;
    return {};
  } else if (request.kind == RequestKind::saved) {
    uint64_t number = 0;
    job.refusal = read_number(request.text, options_.number, options_.servers, number);
    text = cat(number);
  } else if (request.kind == RequestKind::stats) {
    text = stats_json();
  } else if (request.kind == RequestKind::updates) {
    RC_RETURN_IF_ERROR(prepare(job));
    text = cat(job.steps.empty() ? 0 : *std::max_element(job.steps.begin(), job.steps.end()));
  } else if (request.kind == RequestKind::leave) {
    workers_[which.index()].is_there = false;
    pace_.end(which);
  } else {
    RC_RETURN_IF_ERROR(prepare(job));
    // The worker has counted refused updates, too.
    if (makes_update(request.kind)) pace_.note(which, request.step + 1);
    if (job.refusal.ok() && makes_update(request.kind)) ++updates_;
  }
  if (job.refusal.ok()) answer(workers_[which.index()], request.id, Answer::Kind::accepted, text);
  return {};
}

Status Server::declare(const Request& request, std::string& text) {
  RC_RETURN_IF_ERROR(store_.declare(request.text, request.first_spec, request.specs));
  for (std::size_t i = 0; i < request.specs.size(); ++i) {
    if (!store_.is_initialized(request.first_spec + i)) text = "needs values";
  }
  return {};
}

Status Server::prepare(Job& job) {
  const Request& request = job.request;
  const bool by_rows = goes_by_rows(request.kind);
  const bool has_slot = request.kind == RequestKind::init || request.kind == RequestKind::pull;
  std::set<uint32_t> named;
  for (std::size_t i = 0; i < request.items.size(); ++i) {
    const uint32_t variable = request.items[i].variable;
    if (variable >= store_.variables() || !named.insert(variable).second) {
      return {Code::failed, cat("asked for variable ", variable, " of ", store_.variables(),
                                ", once in a request")};
    }
    const std::size_t slots = has_slot ? store_.slots(variable) : 0;
    if (request.slot > slots) {
      return {Code::failed, cat("asked for slot ", request.slot, " of ", slots)};
    }
    const StoredSpec& spec = store_.spec(variable);
    if (by_rows && (spec.row_elements == 0 || request.items[i].rows > spec.rows() ||
                    rows_in_a_chunk(spec, request.chunk_bytes) == 0)) {
      return {Code::failed, cat("asked for rows of ", spec.name)};
    }
    append_chunks(request, i, spec, job.chunks);
    if (needs_values(request.kind) != store_.is_initialized(variable) && job.refusal.ok()) {
      job.refusal = refuse_values(spec, request.kind);
    }
    if (makes_update(request.kind) && job.refusal.ok()) job.refusal = check_rate(request, variable);
  }
  if (!job.refusal.ok()) return {};
  for (const Item& item : request.items) {
    job.steps.push_back(makes_update(request.kind)
                            ? store_.begin_update(item.variable, request.learning_rate)
                            : store_.updates(item.variable));
  }
  return {};
}

// Either the first worker, which must send the values, asks too early, or the first worker has
// left.
Status Server::refuse_values(const StoredSpec& spec, RequestKind kind) const {
  if (kind == RequestKind::init) {
    return {Code::invalid, cat("variable ", spec.name,
                               " has its initial values already: push gradients to change it.")};
  }
  if (workers_[kFirstWorker.index()].is_there) {
    return {Code::invalid,
            cat("variable ", spec.name,
                " has no values yet, and this worker has to send them: declare it first.")};
  }
  return {Code::rank_failed, cat("rank ", world_.number(workers_[kFirstWorker.index()].rank),
                                 " has left before it gave variable ", spec.name,
                                 " its initial values: its last output may say why. Start again.")};
}

Status Server::check_rate(const Request& push, uint32_t variable) const {
  const std::string& name = store_.spec(variable).name;
  if (push.learning_rate && !std::isfinite(*push.learning_rate)) {
    return {Code::invalid, cat("the learning rate of a push of variable ", name, " is ",
                               *push.learning_rate, ": give a finite number.")};
  }
  if (push.learning_rate || !store_.needs_rate(variable)) return {};
  return {Code::invalid, cat("variable ", name,
                             " goes by the learning rate that comes with each push, and this push "
                             "has none: give it one (learning_rate=0.1).")};
}

// Requests by rows catch up later, row by row.
bool Server::catch_up(Job& job) {
  if (goes_by_rows(job.request.kind)) return true;
  for (; job.caught_up < job.steps.size(); ++job.caught_up, job.rows_caught_up = 0) {
    if (!store_.catch_up(job.request.items[job.caught_up].variable, job.steps[job.caught_up],
                         job.rows_caught_up, left_)) {
      return false;
    }
  }
  return true;
}

bool Server::end_job(Worker& worker) {
  Job& job = *worker.job;
  if (job.checkpoint || job.ended < job.chunks.size()) return false;
  if (job.request.kind == RequestKind::declare && job.refusal.ok() && !store_.is_filled())
    return false;
  const Request& request = job.request;
  for (const Item& item : request.items) {
    if (request.kind != RequestKind::init || request.slot > 0 || !job.refusal.ok()) break;
    store_.set_initialized(item.variable, request.step);
  }
  if (!job.chunks.empty()) {
    const bool back = job.refusal.ok() && job.chunks[0].bytes_back > 0;
    if (job.chunks[0].bytes_there > 0) worker.sequence_there += job.chunks.size();
    if (back) worker.sequence_back += job.chunks.size();
  }
  if (job.refusal.ok()) {
    answer(worker, request.id, Answer::Kind::done);
  } else {
    answer(worker, request.id, Answer::Kind::refused, job.refusal.message(), job.refusal.code());
  }
  worker.job.reset();
  return true;
}

void Server::answer(Worker& worker, uint64_t id, Answer::Kind kind, std::string text, Code code) {
  worker.outbox.push_back(encode(Answer{id, kind, code, std::move(text)}));
}

bool Server::say(Worker& worker) {
  bool moved = false;
  while (!worker.unreleased.empty() &&
         transport_.release(worker.rank, kLaneThere, worker.unreleased.front()).ok()) {
    worker.unreleased.pop_front();
    moved = true;
  }
  while (!worker.outbox.empty() &&
         transport_.post_control(worker.rank, worker.outbox.front()).ok()) {
    worker.outbox.pop_front();
    moved = true;
  }
  return moved;
}

void Server::control(int peer, std::span<const std::byte> message) {
  const auto worker = std::find_if(workers_.begin(), workers_.end(),
                                   [peer](const Worker& one) { return one.rank == peer; });
  if (worker == workers_.end() || !worker->is_there) return;
  Request request;
  const bool is_one = decode(message, request);
  if (is_one && request.kind == RequestKind::leave && !request.text.empty())
    return take_reason(request);
  if (is_one && worker->requests.size() < kRequestsMax) {
    worker->requests.push_back(std::move(request));
    return;
  }
  worker->has_broken_protocol = true;  // serve() closes the connection, since poll() must not
}

}  // namespace rdmacoll::ps
