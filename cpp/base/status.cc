#include "base/status.h"

#include <unistd.h>

#include <cstdlib>

#include "base/text.h"

namespace rdmacoll {

std::string_view error_name(Code code) {
  switch (code) {
    case Code::ok:
      return "ok";
    case Code::invalid:
      return "ConfigError";
    case Code::mismatch:
      return "MismatchError";
    case Code::duplicate:
      return "DuplicateNameError";
    case Code::rank_failed:
      return "RankFailedError";
    case Code::stalled:
      return "StalledError";
    case Code::shutdown:
      return "ShutdownError";
    case Code::uninitialized:
      return "NotInitializedError";
    case Code::busy:
    case Code::failed:
      break;
  }
  return "RdmacollError";
}

const std::string& Status::message() const {
  static const std::string kOk = "ok";
  static const std::string kBusy = "busy: poll, then offer it again";
  if (busy_) return kBusy;
  return error_ ? error_->message : kOk;
}

const ErrorDetail& Status::detail() const {
  static const ErrorDetail kNone;
  return error_ ? error_->detail : kNone;
}

std::string Status::to_json() const {
  const ErrorDetail& what = detail();
  return cat("{\"kind\": ", json_quote(error_name(code())),
             ", \"message\": ", json_quote(message()), ", \"rank\": ", what.rank,
             ", \"host\": ", json_quote(what.host), ", \"cause\": ", json_quote(what.cause),
             ", \"tensor\": ", json_quote(what.tensor), ", \"ranks\": [", join(what.ranks, ", "),
             "]}");
}

Status rank_failed(int rank, const std::string& host, int64_t pid, const std::string& cause) {
  return Status(
      Code::rank_failed,
      cat("rank ", rank, " (", host, ", pid ", pid, ") stopped answering: ", cause),
      ErrorDetail{.rank = rank, .host = host, .cause = cause, .tensor = {}, .ranks = {rank}});
}

void assertion_failed(const char* condition, const char* file, int line,
                      const std::string& values) {
  // One write(2), so that lines of several ranks on one terminal do not mix.
  const std::string text = cat("[rdmacoll] internal error at ", file, ":", line, ": ", condition,
                               values.empty() ? "" : ", with ", values, "\n");
  [[maybe_unused]] const auto written = ::write(STDERR_FILENO, text.data(), text.size());
  std::abort();
}

}  // namespace rdmacoll
