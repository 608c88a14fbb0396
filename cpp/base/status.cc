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

const Status::Error Status::kBusy{Code::busy, "busy: poll, then offer it again", {}};

Status::Status(Code code, std::string message, ErrorDetail detail)
    : error_(new Error{code, std::move(message), std::move(detail)}) {}

void Status::let_go() {
  if (is_busy() || error_->users.fetch_sub(1, std::memory_order_acq_rel) > 1) return;
  delete error_;
}

const std::string& Status::message() const {
  static const std::string kOk = "ok";
  return ok() ? kOk : error_->message;
}

const ErrorDetail& Status::detail() const {
  static const ErrorDetail kNone;
  return ok() ? kNone : error_->detail;
}

std::string Status::to_json() const {
  const ErrorDetail& what = detail();
  return cat("{\"kind\": ", json_quote(error_name(code())),
             ", \"message\": ", json_quote(message()), ", \"rank\": ", what.rank,
             ", \"host\": ", json_quote(what.host), ", \"cause\": ", json_quote(what.cause),
             ", \"tensor\": ", json_quote(what.tensor), ", \"ranks\": [", join(what.ranks, ", "),
             "]}");
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
