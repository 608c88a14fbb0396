// Runs random tests in child processes, which may crash, hang or take too much memory.
#pragma once

#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdint>
#include <fstream>
#include <new>
#include <string>
#include <vector>

#include "base/status.h"
#include "base/text.h"
#include "sanitized.h"

namespace rdmacoll {

// The report of the children to their parent, in shared memory.
struct Told {
  uint64_t next = 0;  // the next seed
  uint64_t changed = 0, refused = 0;
  char about[600] = {};  // the last one
  char complaint[600] = {};
};

inline void keep(const std::string& text, char (&place)[600]) {
  place[text.copy(place, sizeof place - 1)] = '\0';
}

class Children {
 public:
  Children() {
    void* const memory =
        mmap(nullptr, sizeof(Told), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    RC_ASSERT(memory != MAP_FAILED, cat("errno ", errno));
    told_ = new (memory) Told;
  }
  ~Children() { munmap(told_, sizeof(Told)); }
  Children(const Children&) = delete;
  Children& operator=(const Children&) = delete;

  Told& told() { return *told_; }

  // Calls run(seed) for one seed after another while more() holds. Another child follows when one
  // crashes. None follows one that hung or took too much memory, since the next would take as long.
  // Returns the deaths.
  template <typename More, typename Run>
  std::vector<std::string> deaths(const More& more, const Run& run) {
    constexpr std::size_t kShown = 20;
    std::vector<std::string> deaths;
    while (more() && deaths.size() < kShown) {
      const pid_t child = fork();
      if (child == 0) {
        limit();
        while (more()) {
          const itimerval limit{{0, 0}, {kLoopS, 0}};
          setitimer(ITIMER_PROF, &limit, nullptr);
          try {
            run(told_->next++);
          } catch (const std::bad_alloc&) {
            _exit(kTookMemory);
          }
        }
        _exit(0);
      }
      int status = 0;
      waitpid(child, &status, 0);
      const bool is_loop = WIFSIGNALED(status) && WTERMSIG(status) == SIGPROF;
      const bool took_memory = WIFEXITED(status) && WEXITSTATUS(status) == kTookMemory;
      const char* const end = is_loop       ? ": does not end"
                              : took_memory ? ": takes too much memory"
                                            : ": crashes";
      if (status != 0) deaths.push_back(cat(told_->about, end));
      if (is_loop || took_memory) break;
    }
    return deaths;
  }

 private:
  // Processor time. A world that takes longer hangs. A wrong number of rows that is within the
  // limits can ask for 120 GB in segments of 16 KiB, for which the simulator takes two minutes.
  static constexpr time_t kLoopS = 600;
  static constexpr int kTookMemory = 77;              // an exit code
  static constexpr rlim_t kMemory = rlim_t{4} << 30;  // beyond what is mapped already

  // The fake CUDA driver, for example, reserves addresses that count here.
  static rlim_t mapped() {
    rlim_t pages = 0;
    std::ifstream("/proc/self/statm") >> pages;
    return pages * static_cast<rlim_t>(sysconf(_SC_PAGESIZE));
  }

  static void limit() {
    const rlim_t most = mapped() + kMemory;
    const rlimit memory{most, most}, none{0, 0};
    if (!kSanitized) setrlimit(RLIMIT_AS, &memory);
    setrlimit(RLIMIT_CORE, &none);
  }

  Told* told_ = nullptr;
};

}  // namespace rdmacoll
