// Refused requests, which never become operations. They keep their place in the order, so that
// later operations still match, and the other ranks receive the reason.
#pragma once

#include "api/engine_handle.h"
#include "api/rdmacoll_c.h"
#include "api/session.h"
#include "base/status.h"

namespace rdmacoll {

// As in rdmacoll_c.h.
void refuse(rc_engine* engine, const rc_request* request, const char* reason);

// Announces the refusal if the request is invalid, its name is in flight, or its GPU has failed.
// Returns `status`.
Status refused(Session& session, const rc_request& request, Status status);

}  // namespace rdmacoll
