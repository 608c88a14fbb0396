// Requests whose tensors are memory of GPUs.
#pragma once

#include <cstdint>

#include "api/session.h"
#include "base/status.h"
#include "operation/operation.h"

namespace rdmacoll {

// Finds the GPUs of a request with this stream, and notes the stream's present work. The operation
// begins after that work. Fails if there is no GPU driver, or if a tensor is in memory of two
// kinds. `reads_input`: whether this rank's inputs are read.
Status use_stream(Session& session, uint64_t stream, Request& request);
Status use_stream(DeviceMemory& memory, uint64_t stream, bool reads_input, Request& request);
// After the end of an operation whose request has a stream: lets its stream wait for the work on
// GPUs that the operation still has. If the stream cannot, or if the operation has failed, this
// thread waits for the work. Returns the operation's status, or a failure of its GPU.
Status follow_end(Operation& operation);

// Does the same as use_stream() for the next run of an operation with the same memory.
Status renew_order(Session& session, uint64_t stream, Request& request);

// Whether a NIC may keep the pages of a tensor's memory: not those of a GPU, nor managed memory,
// whose pages move between host and GPU. Only requests with a stream have either.
bool may_be_pinned(const Request& request, const TensorRef& tensor);

}  // namespace rdmacoll
