#include "api/refusals.h"

#include <string>
#include <utility>

namespace rdmacoll {
namespace {

// The part of a refused request that keeps its place in the order, with the reason.
Request remains_of(const rc_request& from, const std::string& reason) {
  Request request;
  request.set = static_cast<uint32_t>(from.process_set);
  request.kind = static_cast<Kind>(from.kind);
  if (from.name != nullptr) request.name = from.name;
  request.iteration = from.iteration;
  request.refusal = reason.empty() ? "no reason was given" : reason;
  return request;
}

}  // namespace

void refuse(rc_engine* engine, const rc_request* request, const char* reason) {
  if (engine->session->usable().ok()) engine->session->refuse(remains_of(*request, reason));
}

Status refused(Session& session, const rc_request& request, Status status) {
  const bool is_refusal = status.code() == Code::invalid || status.code() == Code::duplicate ||
                          status.code() == Code::failed;
  if (is_refusal) session.refuse(remains_of(request, status.message()));
  return status;
}

}  // namespace rdmacoll
