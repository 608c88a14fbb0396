// The end of an operation for the caller, whose stream of GPU work goes on.
#pragma once

#include "base/status.h"
#include "operation/operation.h"

namespace rdmacoll {

// After the end of an operation whose request has a stream: lets its stream wait for the work on
// GPUs that the operation still has. If the stream cannot, or if the operation has failed, this
// thread waits for the work. Returns the operation's status, or a failure of its GPU.
Status follow_end(Operation& operation);

}  // namespace rdmacoll
