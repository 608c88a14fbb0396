// Streams and events. A thread of the driver carries out one piece of work at a time: late, and
// from streams in an order that the seed chooses. A second thread calls host functions.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <thread>
#include <vector>

#include "cuda/driver_api.h"

namespace rdmacoll::cuda_sim {

struct Context;

// A recorded place in a stream.
struct Mark {
  bool has_passed = false;
};

struct Span {
  cuda::Address begin = 0;
  std::size_t bytes = 0;

  bool overlaps(const Span& other) const {
    return begin < other.begin + other.bytes && other.begin < begin + bytes;
  }
};

struct Work {
  std::function<bool()> run;  // returns false after an access to memory that is not there
  std::shared_ptr<Mark> records;
  std::shared_ptr<Mark> awaits;
  void (*host_function)(void*) = nullptr;
  void* host_argument = nullptr;
  std::vector<Span> touches;  // memory that must stay until the work is done
  uint64_t number = 0;        // in order of submission
};

struct Stream {
  Context* context = nullptr;
  bool is_blocking = false;  // waits for the legacy default stream, which waits for it
  bool is_legacy = false;
  bool is_default = false;  // legacy or per thread
  bool is_busy = false;     // a host function runs
  bool is_destroyed = false;
  int capture = cuda::kCaptureNone;
  std::deque<Work> queue;
};

struct Event {
  Context* context = nullptr;
  unsigned flags = 0;
  std::shared_ptr<Mark> mark;  // null before the first record
};

class Scheduler {
 public:
  // `mutex` is the driver's lock. All functions are called with it held.
  explicit Scheduler(std::mutex& mutex);

  std::shared_ptr<Stream> create(Context* context, bool is_blocking);
  void submit(Stream& stream, Work work);
  // Blocks until the condition holds, or end() is called. It is looked at after each piece of work.
  void wait(std::unique_lock<std::mutex>& lock, const std::function<bool()>& condition);
  // Drops the queued work of a context, without calling its host functions.
  void drop(Context* context);
  // Forgets the context's streams.
  void forget(const Context* context);
  bool has_work(const Context* context) const;
  // Whether a host function runs on a stream of the context.
  bool runs_host_function(const Context* context) const;
  bool touches(Span span) const;
  // Stops the driver's thread, or lets it go on. `step` carries out one piece meanwhile and returns
  // false if none is ready.
  void hold(bool is_held);
  bool step();
  // Ends the driver's threads. Call without the lock, when the process exits.
  void end();
  std::size_t queued() const;
  std::size_t live() const;

 private:
  std::vector<Stream*> ready() const;
  bool is_ready(const Stream& stream) const;
  void carry_out(Stream& stream);
  void work();
  void call_host_functions();
  void start();

  std::mutex& mutex_;
  std::condition_variable changed_;
  std::vector<std::shared_ptr<Stream>> streams_;
  std::deque<std::shared_ptr<Stream>> host_streams_;  // their first work is a host function
  std::mt19937_64 random_;
  int delay_us_;
  uint64_t next_number_ = 1;
  bool is_held_ = false;
  std::vector<std::thread> threads_;
  bool has_ended_ = false;
};

// Says whether the calling thread runs a host function.
bool in_host_function();

}  // namespace rdmacoll::cuda_sim
