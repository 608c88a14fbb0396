// One rank of asynchronous parameter servers, a worker or a server, in a world of their own.
#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/config.h"
#include "base/event.h"
#include "base/spin_policy.h"
#include "base/suspension.h"
#include "bootstrap/fabric.h"
#include "memory/pool.h"
#include "ps/client.h"
#include "ps/server.h"

namespace rdmacoll::ps {

class PsSession {
 public:
  // The servers are the last ranks. `arguments`: as in Session::open(). `host` accepts the
  // connections.
  static Status open(Fabric& host, int rank, int size, int servers,
                     std::optional<uint64_t> staleness, std::string job,
                     std::vector<std::byte> secret, std::string_view arguments,
                     std::unique_ptr<PsSession>& session);
  // Servers regard a worker as lost if it is destroyed before it has left.
  ~PsSession();

  const std::string& card() const { return fabric_->card(); }
  Status probe_node(const std::vector<std::string>& cards, int& leader) {
    return fabric_->probe_node(cards, leader);
  }
  // Connects workers and servers. Returns busy() after `timeout`; call it again then.
  Status start(const std::vector<int>& leaders, Nanoseconds timeout);
  int size() const { return size_; }
  bool is_server() const { return rank_ >= size_ - servers_; }

  // On a server: serves until all workers have left. Returns busy() after `timeout`.
  Status serve(Nanoseconds timeout);
  // On a server that ends before its workers: sends them the cause, within a limited time.
  void leave(const std::string& cause);
  // On a server: Server::stats_json().
  std::string stats();
  // On a server: Server::take_losses() as a JSON list.
  std::string losses();

  // On a worker: the error that has ended it, or ok().
  Status failure();
  // On a worker: with_client() runs `use` while no other thread steps the client. wait() returns
  // when the call is done, or busy() after `timeout`.
  template <typename Use>
  auto with_client(Use use) {
    const std::lock_guard hold(mutex_);
    if (sleeping_ > 0) ring(bell_);
    return use(*client_);
  }
  Status wait(const Call& call, Nanoseconds timeout);
  // Submits a call without waiting. `done` is called once when the call ends, on the thread that
  // steps the client, or inside this function. Returns an error if the call was not started; `done`
  // is not called then.
  template <typename Start>
  Status submit(Start start_call, std::function<void(const Status&)> done) {
    CallRef call;
    bool is_over = false;
    RC_RETURN_IF_ERROR(with_client([&](Client& client) -> Status {
      RC_RETURN_IF_ERROR(start_call(client, call));
      is_over = call->is_done();
      if (!is_over) call->done = std::move(done);
      was_stepped_ = false;  // the session's thread steps the client now
      moved_.notify_all();
      return {};
    }));
    if (is_over) done(call->status);
    return {};
  }
  // Ends all open calls, and all later ones, with ShutdownError.
  void end();

 private:
  // Slightly longer than an answer takes within a node. Afterwards the core is released.
  static constexpr Nanoseconds kSpin = 200 * kMicrosecond;

  PsSession() = default;
  std::vector<int> ranks(int first, int end) const;
  Status set_up(const std::vector<int>& leaders);
  Nanoseconds deadline_in(Nanoseconds timeout) const;
  Status serve_until(std::unique_lock<std::mutex>& hold, Nanoseconds deadline);
  bool step();
  void notice_suspension();
  void sleep(std::unique_lock<std::mutex>& hold, Nanoseconds until);
  void run_callbacks(std::unique_lock<std::mutex>& hold);
  // the thread of workers and colocated servers: heartbeats, and calls without a waiting thread
  void run();

  SteadyClock clock_;
  int rank_ = 0, size_ = 1, servers_ = 1;
  std::optional<uint64_t> staleness_;
  Config config_;
  World world_;
  std::unique_ptr<MemoryPool> pool_;
  std::unique_ptr<Fabric> fabric_;
  std::unique_ptr<Server> server_;
  std::unique_ptr<Client> client_;

  // The thread that holds the mutex steps the client or server. This is a waiting caller if there
  // is one, otherwise the session's thread. A colocated server has this thread, too, since its
  // worker may keep the caller of serve() busy.
  std::mutex mutex_;
  std::condition_variable moved_;
  SuspensionDetector suspension_;
  Nanoseconds suspended_for_ = 0;
  Nanoseconds reason_deadline_ = kNever;  // limit for the last messages of a failed client
  int waiting_ = 0;
  SpinPolicy spin_policy_{kSpin};
  YieldCost yield_cost_;
  int sleeping_ = 0;          // number of threads in poll(), which only the bell can wake
  bool was_stepped_ = false;  // a caller has stepped it since the thread last looked
  bool ends_ = false;
  Fd bell_;
  std::thread thread_;
};

}  // namespace rdmacoll::ps
