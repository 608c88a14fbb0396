// The CUDA driver of this machine, and sentences for its errors. It is opened at run time, since
// rdmacoll must load on machines without a GPU.
#pragma once

#include <sys/types.h>

#include <string>
#include <string_view>

#include "base/status.h"
#include "cuda/driver_api.h"

namespace rdmacoll::cuda {

class Driver {
 public:
  // Opens the library (a name or a path) at its first use in this process, and keeps it open for
  // ever, since the driver has threads of its own. Any thread may call it.
  static Status open(const std::string& library, const Driver*& driver);
  // Uses functions that the caller has found, as tests do. Call initialize() before any other use.
  explicit Driver(const Functions& functions);

  // Checks the version and calls cuInit, which makes no context.
  Status initialize();
  // Refuses a process that was forked after initialize(). CUDA does not work there.
  Status usable() const;
  bool is_forked_child() const;
  int version() const { return version_; }  // 11040: CUDA 11.4

  // Success, or the error of a call. `call` names it in the error: "cuMemAlloc of 4 MiB".
  Status check(Result result, std::string_view call) const {
    if (result == kSuccess) [[likely]]
      return {};
    return error(result, call);
  }
  Status error(Result result, std::string_view call) const;
  std::string name_of(Result result) const;  // "CUDA_ERROR_OUT_OF_MEMORY"

  const Functions call;

 private:
  int version_ = 0;
  pid_t owner_;
};

// Whether all later calls in the same context fail as well, until the process ends.
bool is_sticky(Result result);

}  // namespace rdmacoll::cuda
