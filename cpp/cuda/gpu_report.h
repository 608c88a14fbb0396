// The GPUs of this machine as JSON, for `rdmacoll doctor`.
#pragma once

#include <string>

#include "cuda/gpu_system.h"

namespace rdmacoll::cuda {

// The keys are in cpp/api/rdmacoll_c.h.
std::string gpu_report_json(const GpuSystem& system, const GpuDirectSetting& setting);

}  // namespace rdmacoll::cuda
