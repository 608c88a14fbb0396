// The table of transports.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "transport/provider.h"

namespace rdmacoll {

// In order of preference: two ranks use the first one by which they reach each other. The last one
// reaches every rank.
const std::vector<TransportRow>& transport_table();

// Rows as JSON for a command, with the keys of tools.transports() in rdmacoll_c.h.
std::string transports_json(const std::vector<TransportRow>& rows, const Config& config);

// The devices of the first transport that has some, as JSON for a command.
std::string devices_json(const Config& config);

}  // namespace rdmacoll
