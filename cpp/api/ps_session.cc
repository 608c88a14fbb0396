#include "api/ps_session.h"

#include <poll.h>
#include <sched.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <numeric>
#include <utility>

#include "api/rdmacoll_c.h"
#include "api/session.h"
#include "base/event.h"
#include "base/system_error.h"
#include "base/text.h"
#include "base/thread.h"
#include "base/time_slice.h"
#include "settings/settings.h"

namespace rdmacoll::ps {
namespace {

constexpr uint32_t kEpoch = 1;
// After a caller has left, the thread leaves the client to the next caller for this long.
constexpr std::chrono::milliseconds kStandBack{2};
// The same time at a colocated server, whose caller serves nearly always. It is a fraction of the
// allowed delay of heartbeats.
constexpr std::chrono::milliseconds kStandBackOfServers{100};
// How long the news of a server's end may take to leave this process.
constexpr Nanoseconds kLastWords = 200 * kMillisecond;
// The size that every transport carries in one transfer, including shared memory without one-copy
// reads.
constexpr std::size_t kChunkBytesMost = std::size_t{1} << 20;

std::size_t chunk_bytes(const Config& config) {
  const std::size_t whole = config.chunk_bytes / sizeof(double) * sizeof(double);
  return std::clamp<std::size_t>(whole, kChunkBytesLeast, kChunkBytesMost);
}

}  // namespace

Status PsSession::open(Fabric& host, int rank, int size, int servers,
                       std::optional<uint64_t> staleness, std::string job,
                       std::vector<std::byte> secret, std::string_view arguments,
                       std::unique_ptr<PsSession>& session) {
  if (servers < 1 || servers >= size) {
    return {Code::invalid, cat(servers, " servers of ", size,
                               " ranks: at least one rank has to serve and one to work. Start more "
                               "ranks, or ask for fewer servers.")};
  }
  std::unique_ptr<PsSession> opened(new PsSession);
  std::vector<SettingValue> settings;
  RC_RETURN_IF_ERROR(read_config(arguments, environment, opened->config_, settings));
  opened->rank_ = rank;
  opened->size_ = size;
  opened->servers_ = servers;
  opened->staleness_ = staleness;
  std::string note;  // the engine of this rank has logged it
  RC_RETURN_IF_ERROR(create_pool(opened->config_, size, opened->pool_, note));
  FabricOptions options{.rank = rank,
                        .size = size,
                        .job = std::move(job),
                        .secret = std::move(secret),
                        .epoch = kEpoch,
                        .config = opened->config_,
                        .abi = RC_ABI_VERSION,
                        .settings = world_settings(settings),
                        .host = &host};
  RC_RETURN_IF_ERROR(
      Fabric::open(std::move(options), *opened->pool_, opened->clock_, opened->fabric_));
  opened->bell_ = make_event();
  if (!opened->bell_) return system_error("eventfd", errno);
  session = std::move(opened);
  return {};
}

PsSession::~PsSession() {
  {
    const std::lock_guard hold(mutex_);
    ends_ = true;
  }
  moved_.notify_all();
  ring(bell_);
  if (thread_.joinable()) thread_.join();
  if (client_) end();
}

void PsSession::end() {
  ring(bell_);
  std::unique_lock hold(mutex_);
  client_->fail({Code::shutdown, "this worker has left the parameter servers."});
  while (client_->is_sending_reason()) step();
  step();
  run_callbacks(hold);
}

// Releases the mutex, since a callback may start further calls.
void PsSession::run_callbacks(std::unique_lock<std::mutex>& hold) {
  if (!client_) return;
  const std::vector<CallRef> ended = client_->take_ended();
  if (ended.empty()) return;
  hold.unlock();
  for (const CallRef& call : ended) call->done(call->status);
  hold.lock();
}

std::vector<int> PsSession::ranks(int first, int end) const {
  std::vector<int> ranks(static_cast<std::size_t>(end - first));
  std::iota(ranks.begin(), ranks.end(), first);
  return ranks;
}

Status PsSession::set_up(const std::vector<int>& leaders) {
  RC_RETURN_IF_ERROR(fabric_->make_world(leaders, world_));
  // A colocated server belongs to its worker's process, which the job knows by one rank.
  bool is_colocated = false;
  for (int rank = servers_; 2 * servers_ == size_ && rank < size_; ++rank) {
    const Member& worker = world_.members[static_cast<std::size_t>(rank - servers_)];
    Member& server = world_.members[static_cast<std::size_t>(rank)];
    if (server.host != worker.host || server.pid != worker.pid) continue;
    server.number = JobRank(rank - servers_);
    is_colocated = true;
  }
  world_.servers = is_colocated ? 0 : servers_;
  for (int rank = size_ - servers_; rank < size_; ++rank) world_.members[rank].stores = true;
  RC_RETURN_IF_ERROR(fabric_->begin(world_));
  const std::vector<int> workers = ranks(0, size_ - servers_);
  const std::vector<int> servers = ranks(size_ - servers_, size_);
  if (is_server()) {
    server_ = std::make_unique<Server>(
        *fabric_, world_, *pool_,
        ServerOptions{workers, chunk_bytes(config_), staleness_, rank_ - size_ + servers_, servers_,
                      world_.number(rank_) == JobRank(rank_)});
  } else {
    client_ = std::make_unique<Client>(
        *fabric_, world_, *pool_,
        ClientOptions{servers, chunk_bytes(config_), staleness_.has_value()});
  }
  for (const int peer : is_server() ? workers : servers) fabric_->connect(peer);
  return {};
}

Nanoseconds PsSession::deadline_in(Nanoseconds timeout) const {
  return timeout == kNever ? kNever : clock_.now() + timeout;
}

bool PsSession::step() {
  if (server_) return server_->turn();
  notice_suspension();
  const bool moved = client_->turn();
  if (client_->is_sending_reason()) {
    const Nanoseconds now = clock_.now();
    reason_deadline_ = std::min(reason_deadline_, now + kLastWords);
    notice_suspension();  // this process may have been suspended within the turn
    if (now >= reason_deadline_ || suspended_for_ > 0) client_->stop_sending_reason();
  }
  return moved;
}

// Detects whether this process was suspended. Servers have closed their connections then.
void PsSession::notice_suspension() {
  const Nanoseconds timeout = from_seconds(config_.peer_timeout_s);
  const Nanoseconds suspended_for = suspension_.turn(clock_.now(), timeout);
  if (std::exchange(suspended_for_, suspended_for) == suspended_for) return;
  client_->was_suspended(suspended_for > 0 ? world_.was_suspended(suspended_for, timeout)
                                           : Status());
}

Status PsSession::start(const std::vector<int>& leaders, Nanoseconds timeout) {
  if (!server_ && !client_) RC_RETURN_IF_ERROR(set_up(leaders));
  const std::vector<int> peers =
      is_server() ? ranks(0, size_ - servers_) : ranks(size_ - servers_, size_);
  const Nanoseconds deadline = deadline_in(timeout);
  std::unique_lock hold(mutex_);
  for (;;) {
    const bool moved = step();
    if (client_ && !client_->failure().ok()) return client_->failure();
    if (server_ && !server_->failure().ok()) return server_->failure();
    // A worker that never connects counts as lost.
    if (server_ && server_->is_done()) return {};
    if (std::all_of(peers.begin(), peers.end(),
                    [this](int peer) { return fabric_->is_connected(peer); })) {
      break;
    }
    if (clock_.now() >= deadline) return Status::busy();
    if (!moved) sleep(hold, deadline);
  }
  if (!client_ && world_.number(rank_) == JobRank(rank_)) return {};
  return start_thread(thread_, "the thread of parameter servers", [this] { run(); });
}

Status PsSession::serve(Nanoseconds timeout) {
  const Nanoseconds deadline = deadline_in(timeout);
  std::unique_lock hold(mutex_);
  ++waiting_;
  const Status status = serve_until(hold, deadline);
  --waiting_;
  was_stepped_ = true;
  if (sleeping_ > 0) ring(bell_);  // wake sleepers, whose fabric this caller has disarmed
  return status;
}

Status PsSession::serve_until(std::unique_lock<std::mutex>& hold, Nanoseconds deadline) {
  Wait wait(spin_policy_, clock_.now());
  ShortTimeSlice short_slice;
  for (;;) {
    const bool moved = step();
    const Nanoseconds now = clock_.now();
    if (!server_->failure().ok()) return server_->failure();
    if (server_->is_done() && fabric_->flushed()) return {};
    if (now >= deadline) return Status::busy();
    if (moved) {
      wait.moved(now);
    } else if (wait.should_sleep(now) || yield_cost_.is_high(now)) {
      if (yield_cost_.is_high(now)) short_slice.begin();
      sleep(hold, deadline);
      wait.slept();
    } else {
      sched_yield();
      yield_cost_.yielded(now, clock_.now());
    }
  }
}

void PsSession::leave(const std::string& cause) {
  std::unique_lock hold(mutex_);
  const Nanoseconds deadline = clock_.now() + kLastWords;
  server_->leave(cause);
  while (!(server_->has_informed_workers() && fabric_->flushed()) && clock_.now() < deadline) {
    if (!step()) sched_yield();
  }
}

std::string PsSession::stats() {
  const std::lock_guard hold(mutex_);
  return server_->stats_json();
}

std::string PsSession::losses() {
  const std::lock_guard hold(mutex_);
  std::vector<std::string> quoted;
  RC_ASSERT(server_ != nullptr, "a worker has no losses");
  for (const std::string& loss : server_->take_losses()) quoted.push_back(json_quote(loss));
  return cat("[", join(quoted, ", "), "]");
}

Status PsSession::failure() {
  const std::lock_guard hold(mutex_);
  return client_ ? client_->failure() : Status();
}

// Returns when something arrives, when the bell rings, or at `until`. Releases the mutex meanwhile.
void PsSession::sleep(std::unique_lock<std::mutex>& hold, Nanoseconds until) {
  if (!fabric_->arm()) return;
  const Nanoseconds left = std::min(until, fabric_->next_deadline()) - clock_.now();
  constexpr Nanoseconds kMost = 1 * kSecond;
  ++sleeping_;
  hold.unlock();
  std::array<pollfd, 2> events = {
      pollfd{.fd = fabric_->wait_handle(), .events = POLLIN, .revents = 0},
      pollfd{.fd = bell_.get(), .events = POLLIN, .revents = 0}};
  ::poll(events.data(), events.size(),
         static_cast<int>(std::clamp<Nanoseconds>(left + kMillisecond, 0, kMost) / kMillisecond));
  hold.lock();
  // All sleepers must hear the bell, so the last one silences it.
  if (--sleeping_ == 0) silence(bell_);
}

void PsSession::run() {
  ShortTimeSlice short_slice;
  short_slice.begin();
  std::unique_lock hold(mutex_);
  while (!ends_) {
    // Callers drive the client themselves. If the thread woke up after each one, it would compete
    // with the next.
    if (waiting_ > 0 || std::exchange(was_stepped_, false)) {
      moved_.wait_for(hold, server_ ? kStandBackOfServers : kStandBack);
      continue;
    }
    if (!step()) sleep(hold, kNever);
    run_callbacks(hold);
    hold.unlock();
    hold.lock();
  }
}

Status PsSession::wait(const Call& call, Nanoseconds timeout) {
  const Nanoseconds deadline = deadline_in(timeout);
  std::unique_lock hold(mutex_);
  ++waiting_;
  Wait wait(spin_policy_, clock_.now());
  ShortTimeSlice short_slice;
  while (!call.is_done()) {
    const bool moved = step();
    const Nanoseconds now = clock_.now();
    if (moved) {
      wait.moved(now);
      run_callbacks(hold);
      if (waiting_ > 1) ring(bell_);  // the step may have completed other callers' calls
    } else if (now >= deadline) {
      break;
    } else if (wait.should_sleep(now) || yield_cost_.is_high(now)) {
      if (yield_cost_.is_high(now)) short_slice.begin();
      sleep(hold, deadline);
      wait.slept();
    } else {
      hold.unlock();
      sched_yield();
      hold.lock();
      yield_cost_.yielded(now, clock_.now());
    }
  }
  --waiting_;
  was_stepped_ = true;
  if (sleeping_ > 0) ring(bell_);  // wake sleepers, whose fabric this caller has disarmed
  return call.is_done() ? call.status : Status::busy();
}

}  // namespace rdmacoll::ps
