#include "api/groups.h"

#include <string>
#include <utility>
#include <vector>

#include "api/refusals.h"
#include "api/requests.h"
#include "api/return_values.h"
#include "base/text.h"

namespace rdmacoll {
namespace {

// The name of the later operations of an unnamed group. All groups share it, so that plans know it.
// `Submissions` runs them in the order of their groups.
constexpr std::string_view kUnnamedGroup = "unnamed group";

// Checks all operations before one is submitted, since a group is refused as a whole.
Status group_from(Session& session, const rc_request* requests, int32_t count,
                  std::vector<OperationRef>& operations) {
  std::vector<Request> group(static_cast<std::size_t>(count));
  std::vector<std::string_view> dtypes;
  for (std::size_t i = 0; i < group.size(); ++i) {
    RC_RETURN_IF_ERROR(request_from(session, requests[i], group[i]));
    RC_RETURN_IF_ERROR(session.check(group[i]));  // checks the dtype, too
    dtypes.push_back(name_of(group[i].dtype));
  }
  if (count > 1) group.front().group = join(dtypes, ", ");
  for (std::size_t i = 1; i < group.size(); ++i) {
    group[i].name = cat(group[i].name.empty() ? kUnnamedGroup : group[i].name, "/", dtypes[i]);
    RC_RETURN_IF_ERROR(session.check(group[i]));  // the name is longer now
  }
  for (Request& request : group) {
    operations.push_back(std::make_shared<Operation>(std::move(request)));
  }
  for (std::size_t i = 1; i < operations.size(); ++i) {
    operations[i]->state.awaits_first = true;
    operations.front()->behind.push_back(operations[i]);
  }
  return {};
}

}  // namespace

int submit_group(rc_engine* engine, const rc_request* requests, int32_t n_requests,
                 rc_handle** handles, char** error) {
  Session& session = *engine->session;
  std::vector<OperationRef> operations;
  Status status = session.usable();
  if (status.ok()) status = group_from(session, requests, n_requests, operations);
  if (status.ok()) status = session.driver().submit(operations.front());
  if (status.ok()) {
    for (OperationRef& operation : operations) {
      *handles++ = new rc_handle{&session.driver(), std::move(operation)};
    }
  }
  return report(refused(session, requests[0], std::move(status)), error);
}

}  // namespace rdmacoll
