// The means of a measurement: memory, a thread on a core of its own, and loops over the memory.
#pragma once

#include <sched.h>
#include <signal.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstring>
#include <functional>
#include <thread>
#include <utility>

#include "base/thread.h"
#include "compute/reduce_kernels.h"

namespace rdmacoll::probe {

inline constexpr std::size_t kUnit = 4096;  // arenas and chunks have multiples of it
inline constexpr std::size_t kChunkMax = 128 << 10;

// Anonymous memory. Empty if the kernel refuses it.
class Arena {
 public:
  Arena(std::size_t bytes, bool huge) {
    void* memory =
        ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return;
    ::madvise(memory, bytes, huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);  // advice: it may be refused
    data_ = static_cast<std::byte*>(memory);
    bytes_ = bytes;
  }
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;
  ~Arena() {
    if (data_ != nullptr) ::munmap(data_, bytes_);
  }

  std::byte* data() const { return data_; }
  std::size_t size() const { return bytes_; }
  std::byte* half() const { return data_ + bytes_ / 2; }

 private:
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
};

inline void run_on(int cpu) {
  if (cpu < 0) return;
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(static_cast<std::size_t>(cpu), &set);
  ::sched_setaffinity(0, sizeof set, &set);  // if it is refused, the numbers are rougher
}

// A thread of its own core. Signals go to the other threads. The constructor returns when the
// thread is on its core: it starts on that of its creator, which may be about to poll for it.
class PinnedThread {
 public:
  PinnedThread(int cpu, std::function<void()> work) {
    sigset_t all, before;
    sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, &before);
    has_started_ =
        start_thread(thread_, "a thread that measures", [this, cpu, work = std::move(work)] {
          run_on(cpu);
          is_placed_.store(true);
          work();
        }).ok();
    ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
    while (has_started_ && !is_placed_.load()) ::sched_yield();
  }
  PinnedThread(const PinnedThread&) = delete;
  PinnedThread& operator=(const PinnedThread&) = delete;
  ~PinnedThread() {
    if (thread_.joinable()) thread_.join();
  }
  bool has_started() const { return has_started_; }

 private:
  std::atomic<bool> is_placed_{false};
  bool has_started_ = false;
  std::thread thread_;
};

inline void copy(std::byte* to, const std::byte* from, std::size_t bytes) {
  std::memcpy(to, from, bytes);
}

inline void sum(std::byte* to, const std::byte* from, std::size_t bytes) {
  static const ReduceKernel kernel = reduce_kernel(Dtype::float32, ReduceOp::sum);
  const void* sources[] = {to, from};
  kernel(to, sources, 2, bytes / sizeof(float), Scaling{});
}

using Work = void (*)(std::byte* to, const std::byte* from, std::size_t bytes);

// Walks through both halves of an arena, chunk by chunk, around and around.
class Walk {
 public:
  explicit Walk(const Arena& arena)
      : arena_(arena), chunk_(std::min(arena.size() / 8, kChunkMax) / kUnit * kUnit) {}

  void step(Work work) {
    if (at_ + chunk_ > arena_.size() / 2) at_ = 0;
    work(arena_.half() + at_, arena_.data() + at_, chunk_);
    at_ += chunk_;
  }
  void once(Work work) {
    for (std::size_t done = 0; done < arena_.size() / 2; done += chunk_) step(work);
  }
  std::size_t chunk() const { return chunk_; }

 private:
  const Arena& arena_;
  std::size_t chunk_;
  std::size_t at_ = 0;
};

}  // namespace rdmacoll::probe
