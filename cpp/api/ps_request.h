// What a TensorFlow op asks of parameter servers.
#pragma once

#include <optional>

#include "api/rdmacoll_c.h"
#include "base/status.h"
#include "ps/client.h"

namespace rdmacoll::ps {

// A learning rate that may be missing.
inline std::optional<double> rate_from(const double* rate) {
  return rate == nullptr ? std::nullopt : std::optional(*rate);
}

// An error: nothing was asked, since tensors do not fit their variables.
Status ask_for(const rc_ps_request& request, Client& client, CallRef& call);

}  // namespace rdmacoll::ps
