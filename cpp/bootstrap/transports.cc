#include "bootstrap/transports.h"

#include "base/text.h"
#include "transport/rdma/provider.h"
#include "transport/shm/provider.h"
#include "transport/tcp/provider.h"

namespace rdmacoll {

const std::vector<TransportRow>& transport_table() {
  static const std::vector<TransportRow> kTable = {
      {"shm", "shared memory", [] { return std::make_unique<ShmProvider>(); }},
      {"rdma", "RDMA", [] { return std::make_unique<RdmaProvider>(); }},
      {"tcp", "TCP", [] { return std::make_unique<TcpProvider>(); }},
  };
  return kTable;
}

std::string transports_json(const std::vector<TransportRow>& rows, const Config& config) {
  const auto text = [](bool value) { return value ? "true" : "false"; };
  std::vector<std::string> items;
  for (const TransportRow& row : rows) {
    const std::unique_ptr<TransportProvider> provider = row.make();
    items.push_back(cat("{\"name\": ", json_quote(row.name), ", \"title\": ", json_quote(row.title),
                        ", \"shares_memory\": ", text(provider->shares_memory()),
                        ", \"via_nic\": ", text(provider->via_nic()), ", \"is_off\": ",
                        text(!config.allows(row.name) || provider->is_off(config)), "}"));
  }
  return cat("[", join(items, ", "), "]");
}

std::string devices_json(const Config& config) {
  for (const TransportRow& row : transport_table()) {
    if (std::string json = row.make()->devices_json(config); !json.empty()) return json;
  }
  return "{}";
}

}  // namespace rdmacoll
