// A table of driver functions for tests. Streams stand still until the test lets them run, every
// call can be made to fail, and misuse is written down. Memory of a GPU is memory of the test.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "cuda/driver.h"

namespace rdmacoll::cuda_test {

using namespace rdmacoll::cuda;

// Pinned host memory has another address for kernels, as on older GPUs.
inline constexpr Address kPinnedOffset = Address{1} << 48;

struct Context {
  int ordinal = 0;
  int retained = 0;
};

struct Event {
  Context* context = nullptr;
  uint64_t recorded = 0;  // number of records so far
  uint64_t passed = 0;
};

struct Work {
  std::string what;
  std::function<bool()> run;  // false: not yet
};

struct Stream {
  Context* context = nullptr;
  bool is_default = false;
  bool is_capturing = false;
  std::deque<Work> queue;
};

struct Memory {
  std::size_t bytes = 0;
  MemoryType type = MemoryType::device;
  bool is_managed = false;
  int ordinal = 0;
  uint64_t id = 0;
};

struct Device {
  std::string name = "Tesla K80";
  unsigned char uuid = 0;  // every byte of it
  unsigned char part = 0;  // if not 0, this is a part of a GPU (MIG)
  int compute_mode = kComputeModeDefault;
  bool shares_managed_memory = true;
};

// By name of a call: what it returns from now on. A test changes it while threads of the engine
// call.
class Failures {
 public:
  using Results = std::map<std::string, Result>;
  class Entry {
   public:
    Entry(Failures& all, std::string name) : all_(all), name_(std::move(name)) {}
    void operator=(Result result);

   private:
    Failures& all_;
    const std::string name_;
  };

  Failures& operator=(Results results);
  Entry operator[](const std::string& name) { return {*this, name}; }
  void clear() { *this = Results(); }
  Result of(const std::string& name) const;  // success if there is none

 private:
  mutable std::mutex mutex_;
  Results results_;
};

// One at a time. Its functions are those of `driver()`.
class ScriptedCuda {
 public:
  explicit ScriptedCuda(int gpus = 1);
  ~ScriptedCuda();
  ScriptedCuda(const ScriptedCuda&) = delete;
  ScriptedCuda& operator=(const ScriptedCuda&) = delete;

  const cuda::Driver& driver() { return *driver_; }
  Functions functions() const;

  // Lets all streams run as far as they can. Returns whether anything ran.
  bool run();
  bool run_with_lock();  // the same, for a holder of `mutex`
  // Lets one piece of work of a stream run.
  bool step(Stream& stream);

  // Declares memory of the test as memory of a GPU.
  std::byte* place(std::size_t bytes, int ordinal = 0, MemoryType type = MemoryType::device,
                   bool is_managed = false);
  // The default streams of a GPU's context: 1 legacy, 2 per-thread.
  Stream& default_stream(uint64_t number, int ordinal = 0);
  StreamHandle stream_of_caller(int ordinal = 0);  // a stream that the test made
  int count(const std::string& call);              // since the start

  std::mutex mutex;
  int version = 11'040;
  std::vector<Device> devices;
  std::vector<Context> contexts;
  Failures fails;
  std::map<Address, Memory> memory;
  std::vector<std::unique_ptr<Stream>> streams;
  std::vector<std::unique_ptr<Event>> events;
  bool is_captured = false;  // another thread captures a graph
  bool has_ipc = true;       // memory of GPUs is capable of CUDA IPC
  std::vector<std::string> misuse;
  std::map<std::string, int> calls;
  std::map<void*, std::size_t> pinned;
  std::function<void()> while_loading;  // runs in each load of a module
  std::function<void()> while_freeing;  // runs whenever memory of a GPU is freed
  std::function<void()> after_query;    // runs once, after the next look at an event
  int live_events = 0;
  int live_streams = 0;

  // Called by the table.
  Result called(const char* name);  // counts it, and returns what it shall return
  Stream* stream(StreamHandle handle);
  Result enqueue(const char* name, StreamHandle handle, Work work);
  bool is_current(const Context* context) const;
  static std::vector<Context*>& current();  // the thread's stack of contexts
  static int& capture_mode();               // also the thread's
  void note(const std::string& sentence) { misuse.push_back(sentence); }

  static ScriptedCuda* now;

 private:
  std::map<std::pair<int, uint64_t>, std::unique_ptr<Stream>> default_streams_;
  std::vector<std::unique_ptr<std::byte[], void (*)(void*)>> blocks_;
  std::unique_ptr<cuda::Driver> driver_;
  uint64_t next_id_ = 1;
};

}  // namespace rdmacoll::cuda_test
