// Checks relations between settings, and refuses those that exclude each other.
#include <algorithm>

#include "base/text.h"
#include "bootstrap/transports.h"
#include "collectives/algorithms.h"
#include "settings/settings.h"

namespace rdmacoll {

Status check_relations(Config& config, std::vector<SettingValue>& values) {
  const auto value_of = [&](std::string_view name) -> SettingValue& {
    return *std::find_if(values.begin(), values.end(),
                         [&](const SettingValue& value) { return value.setting->name == name; });
  };
  const auto was_set = [&](std::string_view name) {
    const std::string& source = value_of(name).source;
    return source == "environment" || source == "argument";
  };
  for (const AlgorithmRange& range : config.allreduce_algorithms) {
    const std::string_view reason = never_canonical(range.algorithm);
    if (!config.canonical || reason.empty()) continue;
    return Status(Code::invalid,
                  cat("RDMACOLL_ORDER=canonical and RDMACOLL_ALLREDUCE_ALGORITHM=",
                      value_of("RDMACOLL_ALLREDUCE_ALGORITHM").value,
                      " exclude each other: ", reason, ". Take another algorithm, or auto."));
  }
  if (config.has_servers && !config.allreduce_algorithms.empty()) {
    return Status(Code::invalid,
                  cat("RDMACOLL_MODE=ps and RDMACOLL_ALLREDUCE_ALGORITHM=",
                      value_of("RDMACOLL_ALLREDUCE_ALGORITHM").value,
                      " exclude each other: the servers make the sums. Unset one of them."));
  }
  if (!config.ps_sync && !config.has_servers) {
    return Status(Code::invalid,
                  "RDMACOLL_PS_SYNC=false needs RDMACOLL_MODE=ps: only parameter servers update "
                  "variables for the workers. Set both, or neither.");
  }
  if (config.ps_sync && config.ps_staleness) {
    return Status(Code::invalid,
                  cat("RDMACOLL_PS_STALENESS=", *config.ps_staleness,
                      " needs RDMACOLL_PS_SYNC=false: synchronous workers are never apart. Set "
                      "the one, or unset the other."));
  }
  if (was_set("RDMACOLL_NUM_SERVERS") && config.dedicated_servers() == 0) {
    value_of("RDMACOLL_NUM_SERVERS")
        .add_note(config.has_servers ? "colocated, every worker serves, whatever this says"
                                     : "there are no servers without RDMACOLL_MODE=ps");
  }
  const auto given = [&](std::string_view name) {
    return was_set(name) ? value_of(name).given : std::string();
  };
  for (const TransportRow& row : transport_table()) {
    const bool is_named = config.names(row.name);
    RC_RETURN_IF_ERROR(row.make()->check_settings(
        config, {.is_named = is_named, .is_allowed = config.allows(row.name), .text = given}));
  }
  config.pool_is_given = was_set("RDMACOLL_BUF_SIZE");
  constexpr uint64_t kGiB = uint64_t{1} << 30;
  if (config.pool_bytes % kGiB != 0) {
    value_of("RDMACOLL_BUF_SIZE")
        .add_note(cat(config.pool_bytes,
                      " is not a multiple of 1 GiB, which other systems ask for; "
                      "here it is taken as it is"));
  }
  return {};
}

}  // namespace rdmacoll
