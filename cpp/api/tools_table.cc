// The functions that need no engine, in the C interface.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "api/commands.h"
#include "api/pair_session.h"
#include "api/requests.h"
#include "api/return_values.h"
#include "api/session.h"
#include "api/tables.h"
#include "base/system_error.h"
#include "bootstrap/transports.h"
#include "collectives/algorithms.h"
#include "cuda/gpu_report.h"
#include "settings/settings.h"

struct rc_pair {
  std::unique_ptr<rdmacoll::PairSession> session;
};

namespace rdmacoll {
namespace {

Status read(const char* arguments, Config& config, std::vector<SettingValue>& values) {
  return read_config(arguments == nullptr ? "" : arguments, environment, config, values);
}

int tools_settings(const char* arguments, char** json, char** error) {
  Config config;
  std::vector<SettingValue> values;
  const Status status = read(arguments, config, values);
  *json = copy_text(settings_json(values));
  return report(status, error);
}

int tools_check_descriptors(int32_t needed, char** error) {
  return report(rdmacoll::check_descriptors(needed), error);
}

int tools_devices(const char* arguments, char** json, char** error) {
  Config config;
  std::vector<SettingValue> values;
  const Status status = read(arguments, config, values);
  if (status.ok()) *json = copy_text(devices_json(config));
  return report(status, error);
}

int tools_explain(const rc_plan_query* given, const char* arguments, char** json, char** error) {
  Config config;
  std::vector<SettingValue> values;
  PlanQuery query;
  std::string text;
  Status status = read(arguments, config, values);
  if (status.ok()) status = plan_query_from(*given, query);
  if (status.ok()) query.links = with_kept_profile(query.links, config);
  if (status.ok()) status = plan_json(query, config, text);
  if (status.ok()) *json = copy_text(text);
  return report(status, error);
}

char* tools_algorithms() { return copy_text(algorithms_json()); }

char* tools_transports(const char* arguments) {
  Config config;
  std::vector<SettingValue> values;
  static_cast<void>(read(arguments, config, values));  // tools_settings returns the error
  return copy_text(transports_json(transport_table(), config));
}

int tools_verify_schedules(int32_t first, int32_t last, char** json) {
  bool ok = false;
  *json = copy_text(verify_schedules_json(first, last, ok));
  return ok ? 0 : 1;
}

int tools_sim_faults(uint64_t begin, uint64_t end, int32_t verbose, char** json) {
  bool ok = false;
  *json = copy_text(sim_faults_json(begin, end, verbose != 0, ok));
  return ok ? 0 : 1;
}

int tools_sim_scale(const rc_scale_query* given, char** json, char** error) {
  std::string text;
  const Status status = sim_scale_json(scale_query_from(*given), text);
  if (status.ok()) *json = copy_text(text);
  return report(status, error);
}

int tools_pair_open(int32_t side, const int32_t numbers[2], const char* job, const uint8_t* secret,
                    int32_t secret_bytes, const char* arguments, rc_pair** pair, char** card,
                    char** error) {
  const auto* bytes = reinterpret_cast<const std::byte*>(secret);
  std::unique_ptr<PairSession> session;
  const Status status =
      PairSession::open(side, {numbers[0], numbers[1]}, job, {bytes, bytes + secret_bytes},
                        arguments == nullptr ? "" : arguments, session);
  if (status.ok()) {
    *card = copy_text(session->card());
    *pair = new rc_pair{std::move(session)};
  }
  return report(status, error);
}

int tools_pair_node(rc_pair* pair, const char* const cards[2], int32_t* leader, char** error) {
  int found = 0;
  const Status status = pair->session->probe_node({cards[0], cards[1]}, found);
  *leader = found;
  return report(status, error);
}

int tools_pair_run(rc_pair* pair, const int32_t leaders[2], const rc_pair_plan* plan, char** json,
                   char** error) {
  std::string text;
  const Status status = pair->session->run({leaders[0], leaders[1]}, pair_plan_from(*plan), text);
  if (status.ok()) *json = copy_text(text);
  return report(status, error);
}

void tools_pair_free(rc_pair* pair) { delete pair; }

int tools_gpus(const char* sys, const char* proc, const char* arguments, char** json,
               char** error) {
  Config config;
  std::vector<SettingValue> values;
  const Status status = read(arguments, config, values);
  if (status.ok()) {
    cuda::SystemRoots roots;
    if (sys != nullptr) roots.sys = sys;
    if (proc != nullptr) roots.proc = proc;
    roots.cuda_library = config.cuda_library;
    roots.nvml_library = config.nvml_library;
    roots.gdrcopy_library = config.gdrcopy_library;
    const cuda::GpuSystem system = cuda::read_gpu_system(roots);
    *json = copy_text(cuda::gpu_report_json(system, config.gpudirect));
  }
  return report(status, error);
}

int tools_machine_profile(const char* arguments, int32_t measure, char** json, char** error) {
  Config config;
  std::vector<SettingValue> values;
  const Status status = read(arguments, config, values);
  if (status.ok()) *json = copy_text(machine_profile_json(config, measure != 0));
  return report(status, error);
}

}  // namespace

const rc_tools_api kToolsApi{
    .settings = tools_settings,
    .check_descriptors = tools_check_descriptors,
    .devices = tools_devices,
    .transports = tools_transports,
    .algorithms = tools_algorithms,
    .explain = tools_explain,
    .verify_schedules = tools_verify_schedules,
    .sim_faults = tools_sim_faults,
    .sim_scale = tools_sim_scale,
    .pair_open = tools_pair_open,
    .pair_node = tools_pair_node,
    .pair_run = tools_pair_run,
    .pair_free = tools_pair_free,
    .gpus = tools_gpus,
    .machine_profile = tools_machine_profile,
};

}  // namespace rdmacoll
