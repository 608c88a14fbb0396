// Commands that need no world: their JSON keys, without command, version and ok.
#pragma once

#include <cstdint>
#include <string>

namespace rdmacoll {

std::string verify_schedules_json(int ranks_first, int ranks_last, bool& ok);
std::string sim_faults_json(uint64_t seed_begin, uint64_t seed_end, bool verbose, bool& ok);

}  // namespace rdmacoll
