// Converts structs of the C interface into the engine's types.
#pragma once

#include "api/commands.h"
#include "api/rdmacoll_c.h"
#include "api/session.h"
#include "base/status.h"
#include "operation/operation.h"
#include "probe/pair_probe.h"

namespace rdmacoll {

// Copies and checks a caller's request. The session must be usable.
Status request_from(Session& session, const rc_request& from, Request& to);
// Makes an operation of `session` from the request. Fails if the session is not usable.
Status operation_from(Session& session, const rc_request& from, OperationRef& operation);
probe::Plan pair_plan_from(const rc_pair_plan& from);
Status plan_query_from(const rc_plan_query& from, PlanQuery& to);
ScaleQuery scale_query_from(const rc_scale_query& from);

}  // namespace rdmacoll
