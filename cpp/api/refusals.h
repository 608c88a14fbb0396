// Requests that are refused before they are operations: they have their place in the order, so that
// what follows stays matched, and the ranks that take part hear the reason.
#pragma once

#include "api/engine_handle.h"
#include "api/rdmacoll_c.h"
#include "api/session.h"
#include "base/status.h"

namespace rdmacoll {

// As in rdmacoll_c.h.
void refuse(rc_engine* engine, const rc_request* request, const char* reason);

// Announces it where the request itself is wrong, or its name in flight, and returns the status.
Status refused(Session& session, const rc_request& request, Status status);

}  // namespace rdmacoll
