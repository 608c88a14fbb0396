// The tables of the C interface (rdmacoll_c.h), one for each purpose.
#pragma once

#include "api/rdmacoll_c.h"

namespace rdmacoll {

extern const rc_engine_api kEngineApi;
extern const rc_operation_api kOperationApi;
extern const rc_prepared_api kPreparedApi;
extern const rc_ps_api kPsApi;
extern const rc_tools_api kToolsApi;

}  // namespace rdmacoll
