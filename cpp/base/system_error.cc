#include "base/system_error.h"

#include <sys/resource.h>

#include <cctype>
#include <cerrno>
#include <system_error>
#include <vector>

#include "base/event.h"
#include "base/text.h"

namespace rdmacoll {
namespace {

constexpr rlim_t kPlenty = 65'536;  // advised if there is no hard limit

// The errno of epoll_ctl when the user may watch no more descriptors. No other call here sets it.
constexpr int kNoWatchesLeft = ENOSPC;

rlimit limit_of_descriptors() {
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  return limit;
}

std::string limit_cure(const rlimit& limit) {
  const bool is_raisable = limit.rlim_max > limit.rlim_cur;
  const rlim_t advised = is_raisable && limit.rlim_max != RLIM_INFINITY ? limit.rlim_max : kPlenty;
  const std::string first =
      is_raisable
          ? ""
          : cat("; the hard limit is as low, so before that raise it: \"* - nofile ", advised,
                "\" in /etc/security/limits.d/rdma.conf for all logins, --ulimit nofile=", advised,
                " for a container, LimitNOFILE=", advised, " for a service");
  return cat("raise the limit by `ulimit -n ", advised, "` in the script that starts the ranks",
             first);
}

// A new descriptor is refused only if all numbers below the limit are in use.
std::string out_of_descriptors() {
  const rlimit limit = limit_of_descriptors();
  return cat("all ", limit.rlim_cur,
             " file descriptors that a process may have here (RLIMIT_NOFILE) are in use; ",
             limit_cure(limit));
}

}  // namespace

bool is_shortage(int error) { return error == EMFILE || error == ENFILE; }

std::string error_text(int error) {
  std::string text = std::generic_category().message(error);
  if (!text.empty()) {
    text[0] = static_cast<char>(std::tolower(static_cast<unsigned char>(text[0])));
  }
  if (error == EMFILE) return cat(text, ": ", out_of_descriptors());
  if (error == EFBIG) {
    return cat(text,
               ": the limit on the size of files (RLIMIT_FSIZE) is lower; raise it by "
               "`ulimit -f unlimited` in the script that starts the ranks");
  }
  if (error == ENFILE) {
    return cat(text,
               ": all file descriptors of this machine are in use; raise fs.file-max "
               "(sysctl), or end the programs that have most of them");
  }
  return text;
}

Status system_error(std::string_view what, int error) {
  return {is_shortage(error) ? Code::invalid : Code::failed, cat(what, ": ", error_text(error))};
}

Status watch(int epoll, int fd, epoll_event event) {
  if (::epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) == 0) return {};
  if (errno != kNoWatchesLeft) return system_error("epoll_ctl", errno);
  return {Code::invalid,
          "epoll_ctl: this user watches as many descriptors as the kernel allows; raise "
          "fs.epoll.max_user_watches (sysctl), or end the programs that have most of them"};
}

Status check_descriptors(int needed) {
  std::vector<Fd> tried;
  for (int count = 0; count < needed; ++count) {
    tried.push_back(make_event());
    if (tried.back()) continue;
    if (errno != EMFILE) return system_error("eventfd", errno);
    const rlimit limit = limit_of_descriptors();
    return {
        Code::invalid,
        cat("too many open files: the start needs ", needed, " more file descriptors, and ",
            limit.rlim_cur - static_cast<rlim_t>(count), " of the ", limit.rlim_cur,
            " that a process may have here (RLIMIT_NOFILE) are in use; ", limit_cure(limit), ".")};
  }
  return {};
}

}  // namespace rdmacoll
