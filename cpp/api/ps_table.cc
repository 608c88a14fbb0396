// The functions for parameter servers in the C interface.
#include <memory>
#include <optional>
#include <vector>

#include "api/engine_handle.h"
#include "api/ps_request.h"
#include "api/ps_session.h"
#include "api/return_values.h"
#include "api/session.h"
#include "api/tables.h"
#include "base/text.h"
#include "ps/update.h"

struct rc_ps {
  std::unique_ptr<rdmacoll::ps::PsSession> session;
};
struct rc_ps_call {
  rdmacoll::ps::CallRef call;
};

namespace rdmacoll::ps {
namespace {

int begin_call(const Status& status, CallRef made, rc_ps_call** call, char** error) {
  if (status.ok()) *call = new rc_ps_call{std::move(made)};
  return report(status, error);
}

Status check_number(const Client& client, int32_t variable) {
  const auto known = client.variables();
  if (variable >= 0 && static_cast<std::size_t>(variable) < known) return {};
  return {Code::invalid, cat("variable number ", variable, " of ", known, ": declare it first.")};
}

Status tensors_from(const Client& client, int32_t count, const int32_t* variables,
                    void* const* data, std::vector<Tensor>& tensors) {
  for (int32_t i = 0; i < count; ++i) {
    RC_RETURN_IF_ERROR(check_number(client, variables[i]));
    tensors.push_back({static_cast<uint32_t>(variables[i]),
                       data == nullptr ? nullptr : static_cast<std::byte*>(data[i])});
  }
  return {};
}

int ps_rule_slots(const char* rule, char** json, char** error) {
  UpdateRule read;
  const Status status = rule_from(rule, read);
  if (!status.ok()) return report(status, error);
  std::vector<std::string> names;
  for (const std::string_view name : read.slots()) names.push_back(json_quote(name));
  *json = copy_text(cat("{\"slots\": [", join(names, ", "),
                        "], \"initial_value\": ", read.initial_value_of_slots(), "}"));
  return kDone;
}

int ps_update(const rc_update* update, char** error) {
  UpdateRule rule;
  const Status status = rule_from(update->rule, rule);
  if (!status.ok()) return report(status, error);
  RC_ASSERT(static_cast<std::size_t>(update->n_slots) == rule.slots().size());
  const std::optional<double> rate = rate_from(update->learning_rate);
  if (!rate && rule.needs_rate()) {
    return report({Code::invalid,
                   "this rule has no learning rate, since each push brings one: give "
                   "it one (learning_rate=0.1)."},
                  error);
  }
  std::vector<std::byte*> slots;
  for (int32_t i = 0; i < update->n_slots; ++i) {
    slots.push_back(static_cast<std::byte*>(update->slots[i]));
  }
  Update(rule, static_cast<Dtype>(update->dtype), update->step, update->decays != 0, rate)
      .apply(static_cast<std::byte*>(update->values), slots,
             static_cast<const std::byte*>(update->gradient), update->count);
  return kDone;
}

int ps_open(rc_engine* engine, int32_t rank, int32_t size, int32_t servers, int64_t staleness,
            const char* job, const uint8_t* secret, int32_t secret_bytes, const char* arguments,
            rc_ps** ps, char** card, char** error) {
  const auto* bytes = reinterpret_cast<const std::byte*>(secret);
  std::unique_ptr<PsSession> session;
  std::optional<uint64_t> bound;
  if (staleness >= 0) bound = static_cast<uint64_t>(staleness);
  const Status status = PsSession::open(engine->session->fabric(), rank, size, servers, bound, job,
                                        {bytes, bytes + secret_bytes}, arguments, session);
  if (status.ok()) {
    *card = copy_text(session->card());
    *ps = new rc_ps{std::move(session)};
  }
  return report(status, error);
}

int ps_node(rc_ps* ps, const char* const* cards, int32_t* leader, char** error) {
  int found = 0;
  const Status status = ps->session->probe_node({cards, cards + ps->session->size()}, found);
  *leader = found;
  return report(status, error);
}

int ps_start(rc_ps* ps, const int32_t* leaders, int64_t timeout_ms, char** error) {
  return report(
      ps->session->start({leaders, leaders + ps->session->size()}, nanoseconds(timeout_ms)), error);
}

void ps_free(rc_ps* ps) { delete ps; }

int ps_serve(rc_ps* ps, int64_t timeout_ms, char** error) {
  return report(ps->session->serve(nanoseconds(timeout_ms)), error);
}

int ps_declare(rc_ps* ps, const rc_variable* variables, int32_t n_variables, const char* rule,
               rc_ps_call** call, char** error) {
  std::vector<VariableSpec> specs;
  const auto count = static_cast<std::size_t>(n_variables);
  const std::unique_ptr<bool[]> decays(new bool[count]());
  for (std::size_t i = 0; i < count; ++i) {
    const rc_variable& one = variables[i];
    specs.push_back({one.name,
                     static_cast<Dtype>(one.dtype),
                     {one.dims, one.dims + one.ndim},
                     one.by_rows != 0});
    decays[i] = one.decays != 0;
  }
  CallRef made;
  const Status status = ps->session->with_client([&](Client& client) {
    return client.declare(specs, {decays.get(), count}, rule, made);
  });
  return begin_call(status, std::move(made), call, error);
}

int ps_transfer(rc_ps* ps, int32_t transfer, int32_t n_variables, const int32_t* variables,
                void* const* data, const double* learning_rate, rc_ps_call** call, char** error) {
  CallRef made;
  const std::optional<double> rate = rate_from(learning_rate);
  const Status status = ps->session->with_client([&](Client& client) -> Status {
    std::vector<Tensor> tensors;
    RC_RETURN_IF_ERROR(tensors_from(client, n_variables, variables, data, tensors));
    made = transfer == RC_PS_INIT   ? client.init(tensors)
           : transfer == RC_PS_PUSH ? client.push(tensors, rate)
           : transfer == RC_PS_PULL ? client.pull(tensors)
                                    : client.push_pull(tensors, rate);
    return {};
  });
  return begin_call(status, std::move(made), call, error);
}

int ps_transfer_rows(rc_ps* ps, int32_t transfer, int32_t variable, const int64_t* rows,
                     int64_t n_rows, void* data, const double* learning_rate, rc_ps_call** call,
                     char** error) {
  CallRef made;
  const std::optional<double> rate = rate_from(learning_rate);
  const std::span<const int64_t> named(rows, static_cast<std::size_t>(n_rows));
  const auto number = static_cast<uint32_t>(variable);
  auto* bytes = static_cast<std::byte*>(data);
  const Status status = ps->session->with_client([&](Client& client) -> Status {
    RC_RETURN_IF_ERROR(check_number(client, variable));
    return transfer == RC_PS_PUSH ? client.push_rows(number, named, bytes, made, rate)
                                  : client.pull_rows(number, named, bytes, made);
  });
  return begin_call(status, std::move(made), call, error);
}

int ps_query(rc_ps* ps, int32_t query, rc_ps_call** call, char** error) {
  CallRef made = ps->session->with_client(
      [query](Client& client) { return query == RC_PS_STATS ? client.stats() : client.leave(); });
  return begin_call({}, std::move(made), call, error);
}

int ps_wait(rc_ps* ps, const rc_ps_call* call, int64_t timeout_ms, char** texts, char** error) {
  const Status status = ps->session->wait(*call->call, nanoseconds(timeout_ms));
  if (status.ok()) {
    std::vector<std::string> quoted;
    for (const std::string& text : call->call->texts) quoted.push_back(json_quote(text));
    *texts = copy_text(cat("[", join(quoted, ", "), "]"));
  }
  return report(status, error);
}

void ps_call_free(rc_ps_call* call) { delete call; }

char* ps_sharding(rc_ps* ps) {
  return copy_text(
      ps->session->with_client([](Client& client) { return client.sharding().text(); }));
}

int ps_checkpoint(rc_ps* ps, const char* path, int32_t action, rc_ps_call** call, char** error) {
  CallRef made = ps->session->with_client([path, action](Client& client) {
    return action == RC_PS_RESTORE ? client.restore(path)
           : action == RC_PS_SAVED ? client.saved(path)
                                   : client.save(path);
  });
  return begin_call({}, std::move(made), call, error);
}

int ps_transfer_slot(rc_ps* ps, int32_t transfer, int32_t slot, uint64_t updates,
                     int32_t n_variables, const int32_t* variables, void* const* data,
                     rc_ps_call** call, char** error) {
  CallRef made;
  const auto number = static_cast<uint32_t>(slot);
  const Status status = ps->session->with_client([&](Client& client) -> Status {
    std::vector<Tensor> tensors;
    RC_RETURN_IF_ERROR(tensors_from(client, n_variables, variables, data, tensors));
    made = transfer == RC_PS_INIT ? client.init(tensors, number, updates)
                                  : client.pull(tensors, number);
    return {};
  });
  return begin_call(status, std::move(made), call, error);
}

int ps_updates(rc_ps* ps, int32_t n_variables, const int32_t* variables, rc_ps_call** call,
               char** error) {
  CallRef made;
  const Status status = ps->session->with_client([&](Client& client) -> Status {
    std::vector<Tensor> tensors;
    RC_RETURN_IF_ERROR(tensors_from(client, n_variables, variables, nullptr, tensors));
    made = client.updates(tensors);
    return {};
  });
  return begin_call(status, std::move(made), call, error);
}

int ps_submit(rc_ps* ps, const rc_ps_request* request, char** error) {
  const Status here = refuse_forked_child();
  if (!here.ok()) return report(here, error);
  return report(
      ps->session->submit(
          [request](Client& client, CallRef& call) { return start_call(*request, client, call); },
          [done = request->done, context = request->context](const Status& status) {
            done(context, status.ok() ? nullptr : status.to_json().c_str());
          }),
      error);
}

void ps_end(rc_ps* ps) { ps->session->end(); }

void ps_leave(rc_ps* ps, const char* cause) { ps->session->leave(cause); }

char* ps_stats(rc_ps* ps) { return copy_text(ps->session->stats()); }

int ps_failure(rc_ps* ps, char** error) { return report(ps->session->failure(), error); }

char* ps_losses(rc_ps* ps) { return copy_text(ps->session->losses()); }

int ps_exchange(rc_ps* ps, int32_t n_variables, const int32_t* variables,
                const void* const* gradients, void* const* values, const double* learning_rate,
                rc_ps_call** call, char** error) {
  CallRef made;
  const Status status = ps->session->with_client([&](Client& client) -> Status {
    std::vector<Tensor> tensors;
    RC_RETURN_IF_ERROR(tensors_from(client, n_variables, variables, values, tensors));
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      tensors[i].gradient = static_cast<const std::byte*>(gradients[i]);
    }
    made = client.push_pull(tensors, rate_from(learning_rate));
    return {};
  });
  return begin_call(status, std::move(made), call, error);
}

}  // namespace
}  // namespace rdmacoll::ps

namespace rdmacoll {

const rc_ps_api kPsApi{
    .rule_slots = ps::ps_rule_slots,
    .update = ps::ps_update,
    .open = ps::ps_open,
    .node = ps::ps_node,
    .start = ps::ps_start,
    .free = ps::ps_free,
    .serve = ps::ps_serve,
    .stats = ps::ps_stats,
    .losses = ps::ps_losses,
    .leave = ps::ps_leave,
    .declare = ps::ps_declare,
    .transfer = ps::ps_transfer,
    .exchange = ps::ps_exchange,
    .transfer_rows = ps::ps_transfer_rows,
    .transfer_slot = ps::ps_transfer_slot,
    .updates = ps::ps_updates,
    .query = ps::ps_query,
    .checkpoint = ps::ps_checkpoint,
    .wait = ps::ps_wait,
    .call_free = ps::ps_call_free,
    .submit = ps::ps_submit,
    .sharding = ps::ps_sharding,
    .failure = ps::ps_failure,
    .end = ps::ps_end,
};

}  // namespace rdmacoll
