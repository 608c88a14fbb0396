#include <cstdio>
#include <vector>

#include "api/commands.h"
#include "base/text.h"
#include "sim/simulator.h"

namespace rdmacoll {

std::string sim_faults_json(uint64_t seed_begin, uint64_t seed_end, bool verbose, bool& ok) {
  uint64_t hangs = 0, wrong_sums = 0, unnamed_errors = 0, lost_wakeups = 0;
  std::vector<uint64_t> failing;
  std::vector<std::string> findings;
  for (uint64_t seed = seed_begin; seed < seed_end; ++seed) {
    const SimOutcome outcome = simulate(seed, verbose);
    hangs += outcome.hang.empty() ? 0 : 1;
    wrong_sums += outcome.wrong.empty() ? 0 : 1;
    unnamed_errors += outcome.unnamed.empty() ? 0 : 1;
    lost_wakeups += outcome.overslept.empty() ? 0 : 1;
    const std::string finding =
        cat("seed ", seed, ": ", outcome.scenario, outcome.ok() ? ": as it should be" : "",
            outcome.hang.empty() ? "" : "\nhangs: ", outcome.hang,
            outcome.wrong.empty() ? "" : "\nwrong: ", outcome.wrong,
            outcome.unnamed.empty() ? "" : "\nunexpected: ", outcome.unnamed,
            outcome.overslept.empty() ? "" : "\nlate: ", outcome.overslept);
    if (!outcome.ok()) {
      failing.push_back(seed);
      findings.push_back(json_quote(finding));
    }
    if (verbose) std::fprintf(stderr, "%s\n", finding.c_str());
  }
  ok = failing.empty();
  return cat("{\"seeds\": ", seed_end - seed_begin, ", \"hangs\": ", hangs,
             ", \"wrong_sums\": ", wrong_sums, ", \"unnamed_errors\": ", unnamed_errors,
             ", \"lost_wakeups\": ", lost_wakeups, ", \"failing_seeds\": [", join(failing, ", "),
             "], \"findings\": [", join(findings, ", "), "]}");
}

Status sim_scale_json(const ScaleQuery& query, std::string& json) {
  ScaleResult result;
  RC_RETURN_IF_ERROR(simulate_scale(query, result));
  std::vector<std::string> algorithms;
  for (const std::string& name : result.algorithms) algorithms.push_back(json_quote(name));
  json = cat("{\"transfers\": ", result.transfers,
             ", \"time_us\": ", result.is_simulated ? cat(result.time_us) : "null",
             ", \"algorithms\": [", join(algorithms, ", "),
             "], \"moved\": ", result.is_checked ? "true" : "false", "}");
  return {};
}

}  // namespace rdmacoll
