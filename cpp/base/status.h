// Failures of the environment are a Status. Our own errors are an RC_ASSERT, on in release builds
// too.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/rank.h"

namespace rdmacoll {

enum class Code : uint8_t {
  ok,
  busy,           // not accepted now; poll() and offer it again
  invalid,        // ConfigError: a wrong argument, setting or environment
  mismatch,       // MismatchError: ranks disagree
  duplicate,      // DuplicateNameError
  rank_failed,    // RankFailedError: .rank .host .cause
  stalled,        // StalledError: .tensor .missing_ranks
  shutdown,       // ShutdownError
  uninitialized,  // NotInitializedError
  failed,         // RdmacollError: any other failure of the environment
};

// The Python class for a code. It is also the first word of an error's text in a TensorFlow graph.
std::string_view error_name(Code code);

// The data of a typed error, beside its sentence.
struct ErrorDetail {
  JobRank rank;
  std::string host;
  std::string cause;
  std::string tensor;
  std::vector<JobRank> ranks;
};

// An immutable value. It is one pointer, null when ok, since every layer below a small sum returns
// one.
class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(Code code, std::string message, ErrorDetail detail = {});
  Status(const Status& other) : error_(other.error_) { keep(); }
  Status(Status&& other) noexcept : error_(std::exchange(other.error_, nullptr)) {}
  Status& operator=(Status other) noexcept {
    std::swap(error_, other.error_);
    return *this;
  }
  ~Status() {
    if (error_ != nullptr) [[unlikely]]
      let_go();
  }

  static Status busy() { return Status(&kBusy); }

  bool ok() const { return error_ == nullptr; }
  bool is_busy() const { return error_ == &kBusy; }
  Code code() const { return ok() ? Code::ok : error_->code; }
  const std::string& message() const;
  const ErrorDetail& detail() const;

  // The form in which a status crosses the C boundary: {"kind": "RankFailedError", "message": ...,
  // "rank": ..., ...}.
  std::string to_json() const;

 private:
  struct Error {
    Code code;
    std::string message;
    ErrorDetail detail;
    mutable std::atomic<uint32_t> users{1};
  };
  static const Error kBusy;  // shared by all, not counted

  explicit Status(const Error* error) : error_(error) {}
  void keep() const {
    if (error_ != nullptr && error_ != &kBusy)
      error_->users.fetch_add(1, std::memory_order_relaxed);
  }
  void let_go();

  const Error* error_ = nullptr;  // shared: one failure ends many operations
};

[[noreturn]] void assertion_failed(const char* condition, const char* file, int line,
                                   const std::string& values);

}  // namespace rdmacoll

// `values` is any text that helps the reader of the crash: cat("sequence ", n).
#define RC_ASSERT(condition, ...)                                           \
  do {                                                                      \
    if (!(condition)) [[unlikely]] {                                        \
      ::rdmacoll::assertion_failed(#condition, __FILE__, __LINE__,          \
                                   ::std::string(__VA_OPT__(__VA_ARGS__))); \
    }                                                                       \
  } while (false)

#define RC_RETURN_IF_ERROR(expression)            \
  do {                                            \
    ::rdmacoll::Status rc_status_ = (expression); \
    if (!rc_status_.ok()) return rc_status_;      \
  } while (false)
