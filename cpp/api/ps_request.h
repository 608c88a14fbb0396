// Requests of TensorFlow ops to parameter servers.
#pragma once

#include <optional>

#include "api/rdmacoll_c.h"
#include "base/status.h"
#include "ps/client.h"

namespace rdmacoll::ps {

// An optional learning rate.
inline std::optional<double> rate_from(const double* rate) {
  return rate == nullptr ? std::nullopt : std::optional(*rate);
}

// Starts the call. Returns an error, without starting it, if tensors do not fit their variables.
Status start_call(const rc_ps_request& request, Client& client, CallRef& call);

}  // namespace rdmacoll::ps
