// A rank of an asynchronous parameter server: a worker or a server, in a world of its own.
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
#include "base/gap.h"
#include "base/patience.h"
#include "bootstrap/fabric.h"
#include "memory/pool.h"
#include "ps/client.h"
#include "ps/server.h"

namespace rdmacoll::ps {

class PsSession {
 public:
  // Servers are the last ranks. `arguments` as of Session::open. `host` lets callers in.
  static Status open(Fabric& host, int rank, int size, int servers,
                     std::optional<uint64_t> staleness, std::string job,
                     std::vector<std::byte> secret, std::string_view arguments,
                     std::unique_ptr<PsSession>& session);
  // A worker that has not left is lost for the servers.
  ~PsSession();

  const std::string& card() const { return fabric_->card(); }
  Status probe_node(const std::vector<std::string>& cards, int& leader) {
    return fabric_->probe_node(cards, leader);
  }
  // Connects workers and servers; busy() when `timeout` is over before. To be asked again then.
  Status start(const std::vector<int>& leaders, Nanoseconds timeout);
  int size() const { return size_; }
  bool is_server() const { return rank_ >= size_ - servers_; }

  // On a server: until all workers have left; busy() when `timeout` is over before.
  Status serve(Nanoseconds timeout);
  // On a server that ends before its workers: tells them why, and waits a moment for it to go.
  void leave(const std::string& cause);
  // On a server, what it has done: as Server::stats_json().
  std::string stats();
  // On a server, what Server::take_losses() gives: a list in JSON.
  std::string losses();

  // On a worker: what has ended it, ok() while there is nothing.
  Status failure();
  // On a worker. `ask` runs while nobody else steps the client. Then until all is done; busy() when
  // `timeout` is over before.
  template <typename Ask>
  auto ask(Ask ask) {
    const std::lock_guard hold(mutex_);
    if (sleeping_ > 0) ring(bell_);
    return ask(*client_);
  }
  Status wait(const Call& call, Nanoseconds timeout);
  // The same for a call that nobody waits for: `done` is called once, by whoever steps the client
  // when it ends, or from in here. An error: it was not asked, and is not called.
  template <typename Ask>
  Status submit(Ask ask_for, std::function<void(const Status&)> done) {
    CallRef call;
    bool is_over = false;
    RC_RETURN_IF_ERROR(ask([&](Client& client) -> Status {
      RC_RETURN_IF_ERROR(ask_for(client, call));
      is_over = call->is_done();
      if (!is_over) call->done = std::move(done);
      has_been_ = false;  // the thread has it, and does not stand back
      moved_.notify_all();
      return {};
    }));
    if (is_over) done(call->status);
    return {};
  }
  // Ends all that is open, and all that will be asked, with ShutdownError.
  void end();

 private:
  // A little more than an answer takes within a node; then the processor is for others.
  static constexpr Nanoseconds kSpin = 200 * kMicrosecond;

  PsSession() = default;
  std::vector<int> ranks(int first, int end) const;
  Status take_up(const std::vector<int>& leaders);
  Nanoseconds deadline_in(Nanoseconds timeout) const;
  Status serve_until(std::unique_lock<std::mutex>& hold, Nanoseconds deadline);
  bool step();
  void notice_gap();
  void sleep(std::unique_lock<std::mutex>& hold, Nanoseconds until);
  void call_back(std::unique_lock<std::mutex>& hold);
  void run();  // the thread of worker and colocated server: heartbeats, what nobody waits for

  SteadyClock clock_;
  int rank_ = 0, size_ = 1, servers_ = 1;
  std::optional<uint64_t> staleness_;
  Config config_;
  World world_;
  std::unique_ptr<MemoryPool> pool_;
  std::unique_ptr<Fabric> fabric_;
  std::unique_ptr<Server> server_;
  std::unique_ptr<Client> client_;

  // Whoever holds the mutex steps client or server: those who wait, else the thread. A colocated
  // server has one too: whoever calls serve() may be kept from it by what the worker does.
  std::mutex mutex_;
  std::condition_variable moved_;
  Gap gap_;
  Nanoseconds stopped_for_ = 0;
  Nanoseconds last_words_until_ = kNever;  // of the client, once it has failed
  int waiting_ = 0;
  Patience patience_{kSpin};
  int sleeping_ = 0;       // in poll(), and not hearing of anything but the bell
  bool has_been_ = false;  // a caller, since the thread looked
  bool ends_ = false;
  Fd bell_;
  std::thread thread_;
};

}  // namespace rdmacoll::ps
