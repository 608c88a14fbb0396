#include "base/thread.h"

#include <sys/resource.h>

#include <system_error>

#include "base/cgroup.h"
#include "base/system_error.h"
#include "base/text.h"

namespace rdmacoll {
namespace {

std::string limit_text(int resource) {
  rlimit limit{};
  if (::getrlimit(resource, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return "";
  return cat(limit.rlim_cur);
}

}  // namespace

Status start_thread(std::thread& thread, std::string_view what, std::function<void()> work) {
  try {
    thread = std::thread(std::move(work));
    return {};
  } catch (const std::system_error& error) {
    std::string text = cat("cannot start ", what, ": ", error_text(error.code().value()));
    std::string cure;
    if (const std::string most = limit_text(RLIMIT_NPROC); !most.empty()) {
      text += cat("; this user may have ", most, " processes and threads (RLIMIT_NPROC)");
      cure =
          "raise it by `ulimit -u` in the script that starts the ranks, or lower the threads of "
          "other libraries (OMP_NUM_THREADS=1)";
    }
    if (const auto limit = group_limit("pids", "pids.max", "pids.max")) {
      text += cat("; this container or service may have ", limit->value, " of them (", limit->file,
                  ")");
      cure += cat(cure.empty() ? "" : "; ",
                  "raise it by docker run --pids-limit, or TasksMax= of a service");
    }
    if (const std::string most = limit_text(RLIMIT_AS); !most.empty()) {
      text += cat("; its stack has to fit the address space (RLIMIT_AS is ", most, " bytes)");
      cure += cat(cure.empty() ? "" : "; ", "raise that by `ulimit -v unlimited`");
    }
    if (cure.empty())
      cure = "raise kernel.threads-max (sysctl), or end the programs with most threads";
    return {Code::invalid, cat(text, ". To go on, ", cure, ".")};
  }
}

}  // namespace rdmacoll
