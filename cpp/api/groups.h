// Groups with several dtypes: one operation for each dtype. The first one represents the group.
#pragma once

#include "api/engine_handle.h"
#include "api/rdmacoll_c.h"

namespace rdmacoll {

// As in rdmacoll_c.h.
int submit_group(rc_engine* engine, const rc_request* requests, int32_t n_requests,
                 rc_handle** handles, char** error);

}  // namespace rdmacoll
