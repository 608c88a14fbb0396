// Names and texts of results.
#pragma once

#include "cuda/driver_api.h"

namespace rdmacoll::cuda_sim {

// Null for an unknown result.
const char* error_name(cuda::Result result);
const char* error_text(cuda::Result result);

}  // namespace rdmacoll::cuda_sim
