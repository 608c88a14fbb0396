#include "bootstrap/transports.h"

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

std::string devices_json(const Config& config) {
  for (const TransportRow& row : transport_table()) {
    if (std::string json = row.make()->devices_json(config); !json.empty()) return json;
  }
  return "{}";
}

}  // namespace rdmacoll
