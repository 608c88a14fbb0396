// Requests whose tensors are memory of GPUs.
#pragma once

#include <cstdint>

#include "api/session.h"
#include "base/status.h"
#include "execution/follow_end.h"
#include "operation/operation.h"

namespace rdmacoll {

// Finds the GPUs of a request with this stream, and notes the stream's present work. The operation
// begins after that work. Fails if there is no GPU driver, or if a tensor is in memory of two
// kinds. `reads_input`: whether this rank's inputs are read.
Status use_stream(Session& session, uint64_t stream, Request& request);
Status use_stream(DeviceMemory& memory, uint64_t stream, bool reads_input, Request& request);

// Does the same as use_stream() for the next run of an operation with the same memory.
Status renew_order(Session& session, uint64_t stream, Request& request);

// Whether a NIC may keep the pages of a tensor's memory: not those of a GPU, nor managed memory,
// whose pages move between host and GPU. Only requests with a stream have either.
bool may_be_pinned(const Request& request, const TensorRef& tensor);

}  // namespace rdmacoll
